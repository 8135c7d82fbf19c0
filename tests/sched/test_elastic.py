"""Elastic jobs: with how many workers they start, when they grow, and that they shrink before any job is stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations, product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.sched.decide import Start, decide
from stoker.sched.occupancy import queue_usage
from stoker.spec.job import CHECKPOINTS_CONDITION, AttemptEnd, Claim, Phase, Placed, TrainingJob
from stoker.spec.meta import Condition
from stoker.spec.outcome import Intent
from stoker.spec.usage import JobUsage
from stoker.spec.worker import Checkpoint, Held, Progress, Stalled
from tests.support.examples import examples
from tests.support.preempting import preempting, run, wrote
from tests.support.sched_histories import History, actions


@pytest.mark.parametrize(
    ("rule", "free", "limit", "workers"),
    [
        ("as many as are wished for, though more would be in order", 8, None, 6),
        ("fewer, where the nodes have room for no more", 4, None, 4),
        ("fewer, where the queue's limit allows no more", 8, 3, 3),
        ("not fewer than the least", 1, None, 0),
        ("nor where the limit asks for it", 8, 1, 0),
    ],
)
def test_an_elastic_job_starts_with(
    sched: SimpleNamespace, rule: str, free: int, limit: int | None, workers: int
) -> None:
    world = sched.World().feed(
        sched.queue(gpus=limit), sched.node("a", free), sched.job("x", workers=6, elastic=(2, 8))
    )
    starts = world.decide(0).starts
    assert sum(len(start.placement) for start in starts) == workers, rule
    assert queue_usage(world.state, "default").gpus == workers
    assert world.decide(0).starts == (), "a second look starts nothing"


def test_it_waits_no_longer_than_until_the_least_fits(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 4), sched.job("u", 3, on=["a"]))
    world.feed(sched.job("x", workers=4, elastic=(2, 4)))
    assert world.decide(0).starts == ()
    world.feed(sched.job("u", 2, on=["a"], version=2))
    assert [len(start.placement) for start in world.decide(0).starts] == [2]


def test_a_start_that_was_not_written_leaves_the_wish_as_it_was(sched: SimpleNamespace) -> None:
    x = sched.job("x", workers=4, elastic=(1, 4))
    world = sched.World().feed(sched.queue(), sched.node("a", 2), x)
    (start,) = world.decide(0).starts
    world.state.drop_assumption(start.key)
    world.feed(sched.node("b", 2))
    assert [len(start.placement) for start in world.decide(0).starts] == [4]


def test_others_are_preempted_for_no_more_than_the_least(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 4))
    world.feed(*(run(sched, name, "a", since=50) for name in "tuvw"))
    x = sched.job("x", workers=4, elastic=(2, 4), priority=1)
    (change,) = world.feed(x).decide(100).claims
    assert (len(change.claim.placement), len(change.claim.victims)) == (2, 2)
    world.feed(wrote(x, claim=change.claim))
    assert world.decide(100).claims == ()
    for name in "tuvw":
        world.state.forget_job(sched.key(name))
    (start,) = world.decide(101).starts
    assert len(start.placement) == 2


@given(
    rooms=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    gpus=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=3).map(sorted),
    limit=st.none() | st.integers(0, 20),
)
@examples(60)
def test_the_most_that_fit_and_never_out_of_bounds(
    sched: SimpleNamespace, rooms: list[int], gpus: int, sizes: list[int], limit: int | None
) -> None:
    least, wish, most = sizes
    world = sched.World().feed(sched.queue(gpus=limit), *(sched.node(f"n{i}", room) for i, room in enumerate(rooms)))
    world.feed(sched.job("x", gpus, workers=wish, elastic=(least, most)))
    fit = min(wish, sum(room // gpus for room in rooms), wish if limit is None else limit // gpus)
    before = world.state.checkpoint()
    started = [len(start.placement) for start in world.decide(0).starts]
    assert started == ([fit] if fit >= least else [])
    world.state.rollback(before)
    assert queue_usage(world.state, "default").gpus == 0


def runs(sched: SimpleNamespace, name: str, *on: str, elastic: tuple[int, int], saved: float = 100, **more: Any) -> Any:
    """An elastic job that has run since 0 and saved then, with a worker per node named."""
    return run(sched, name, *on, saved=saved, elastic=elastic, **more)


def test_an_elastic_job_shrinks_before_any_job_is_stopped_though_stopping_one_would_cost_less(
    sched: SimpleNamespace,
) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 4))
    e = runs(sched, "e", *"aaa", elastic=(1, 4), saved=0)
    world.feed(e, run(sched, "cheap", "a", since=99, saved=100))
    x = sched.job("x", priority=1)
    (change,) = world.feed(x).decide(100).claims
    ((victim, keeps),) = [(one.name, [placed.node for placed in one.keeps]) for one in change.claim.victims]
    assert (victim, keeps) == ("e", ["a", "a"]), "no more than need be"
    claimed = wrote(x, claim=change.claim)
    world.feed(claimed)
    assert world.decide(100).claims == ()

    # While it saves it holds all three; then its claim keeps two, whatever waits.
    world.feed(sched.job("y", 2, priority=9, queue="other"), sched.queue("other"))
    stopping = wrote(e, phase=Phase.STOPPING, intent=Intent.RESIZE, claim=keep(sched, "a", "a"))
    world.feed(stopping)
    assert world.decide(101).starts == ()
    again = sched.World().feed(preempting(sched.queue()), sched.node("a", 4), stopping, claimed)
    assert again.state.claims.keeps.keys() == world.state.claims.keeps.keys()
    over = wrote(stopping, 3, phase=Phase.QUEUED, placement=(), started_at=None, attempts=(ended(sched, 110),))
    world.feed(over)
    assert world.starts(110) == {"e": ["a", "a"], "x": ["a"]}
    assert queue_usage(world.state, "default").gpus == 4


def test_it_gives_up_workers_where_the_other_job_may_run_and_keeps_those_elsewhere(sched: SimpleNamespace) -> None:
    nodes = [sched.node("a", 2, model="A100"), sched.node("h", 2, model="H100")]
    world = sched.World().feed(preempting(sched.queue()), *nodes, runs(sched, "e", *"aahh", elastic=(1, 4)))
    (change,) = world.feed(sched.job("x", models=["H100"], priority=1)).decide(100).claims
    (victim,) = change.claim.victims
    assert [placed.node for placed in victim.keeps] == ["a", "a", "h"]
    assert [placed.worker for placed in victim.keeps] == [0, 1, 2]


def test_where_shrinking_is_not_enough_others_are_stopped_and_it_shrinks_no_further_than_it_must(
    sched: SimpleNamespace,
) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 6))
    world.feed(runs(sched, "e", *"aaa", elastic=(2, 4)), run(sched, "v", *"aaa", saved=100))
    (change,) = world.feed(sched.job("x", 4, priority=1)).decide(100).claims
    assert {one.name: len(one.keeps) for one in change.claim.victims} == {"e": 2, "v": 0}
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 6))
    world.feed(runs(sched, "e", *"aaa", elastic=(2, 4), saved=40), run(sched, "v", *"aaa", saved=100))
    (change,) = world.feed(sched.job("x", 3, priority=1)).decide(100).claims
    assert {one.name: len(one.keeps) for one in change.claim.victims} == {"v": 0}


def test_an_owner_reclaims_from_an_elastic_borrower_and_leaves_it_its_least(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue("lent"), sched.queue("owner", guarantee=3), sched.node("a", 4))
    world.feed(runs(sched, "e", *"aaaa", elastic=(1, 4), queue="lent"))
    world.feed(*(sched.job(f"o{i}", queue="owner") for i in range(3)))
    changes = world.decide(100).claims
    assert [[len(one.keeps) for one in change.claim.victims] for change in changes] != []
    first = changes[0].claim.victims[0]
    assert (first.name, len(first.keeps)) == ("e", 3)


def test_one_that_may_not_be_preempted_does_not_shrink(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 2))
    e = runs(sched, "e", *"aa", elastic=(1, 2))
    world.feed(e.model_copy(update={"spec": e.spec.model_copy(update={"preemptible": False})}))
    assert world.feed(sched.job("x", priority=1)).decide(100).claims == ()


def keep(sched: SimpleNamespace, *on: str) -> Claim:
    placement = tuple(Placed(worker=i, node=node) for i, node in enumerate(on))
    return Claim(placement=placement, victims=(), since=sched.at(100))


def ended(sched: SimpleNamespace, at: float, intent: Intent = Intent.RESIZE) -> AttemptEnd:
    return AttemptEnd(number=1, started_at=sched.at(0), ended_at=sched.at(at), intent=intent)


def grown(world: Any, at: float) -> dict[str, list[str]]:
    return {one.key.name: [placed.node for placed in one.claim.placement] for one in world.decide(at).claims}


@pytest.mark.parametrize(
    ("rule", "free", "waiting", "elastic", "grows"),
    [
        ("as many as fit", 3, [], (1, 8), 4),
        ("no more than its most, its wish aside", 3, [], (1, 3), 3),
        ("nowhere to grow", 0, [], (1, 8), 0),
        ("not while a job waits that could use the GPUs", 3, [{"gpus": 4}], (1, 8), 0),
        ("a job that never fits does not count", 3, [{"gpus": 64}], (1, 8), 4),
        ("nor one that waits for its own queue's limit", 3, [{"queue": "full"}], (1, 8), 4),
        ("nor one for other GPUs", 3, [{"gpus": 4, "models": ["H100"]}], (1, 8), 4),
    ],
)
def test_it_grows_into_idle_gpus(
    sched: SimpleNamespace, rule: str, free: int, waiting: list[dict[str, Any]], elastic: tuple[int, int], grows: int
) -> None:
    world = sched.World().feed(sched.queue(), sched.queue("full", gpus=0), sched.node("a", 1 + free, model="A100"))
    world.feed(*(sched.job(f"w{i}", **{"gpus": 1, **one}) for i, one in enumerate(waiting)))
    world.feed(runs(sched, "e", "a", elastic=elastic))
    assert grown(world, 100) == ({"e": ["a"] * grows} if grows else {}), rule
    assert grown(world, 100) == {}, "a second look decides nothing"
    assert queue_usage(world.state, "default").gpus == 1, "what is kept for it is not yet used"


@pytest.mark.parametrize(("limit", "waits", "grows"), [(8, 0, 4), (3, 0, 3), (3, 3, 0)])
def test_it_grows_within_its_queues_limit_of_its_gpu_type(
    sched: SimpleNamespace, limit: int, waits: int, grows: int
) -> None:
    world = sched.World().feed(sched.queue(types={"a100": limit}), sched.node("a", 4, model="NVIDIA A100"))
    e = runs(sched, "e", "a", elastic=(1, 4))
    world.feed(wrote(e, gpu_type="a100"), *(sched.job("w", waits) for _ in range(min(waits, 1))))
    assert grown(world, 100) == ({"e": ["a"] * grows} if grows else {})


def test_what_it_grows_into_is_kept_while_it_saves_and_it_goes_on_there(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.queue("other"), sched.node("a", 2), sched.node("b", 2))
    e = runs(sched, "e", "a", elastic=(1, 4))
    (change,) = world.feed(e).decide(100).claims
    growing = wrote(e, claim=change.claim)
    world.feed(growing, sched.job("y", queue="other"))
    assert world.decide(101).starts == (), "kept"
    again = sched.World().feed(sched.queue(), sched.node("a", 2), sched.node("b", 2), growing)
    assert again.state.nodes.free_gpu.sum() == world.state.nodes.free_gpu.sum() == 0, "from the objects alone"
    stopping = wrote(growing, 3, phase=Phase.STOPPING, intent=Intent.RESIZE)
    world.feed(stopping)
    world.feed(wrote(stopping, 4, phase=Phase.QUEUED, placement=(), started_at=None, attempts=(ended(sched, 110),)))
    assert world.starts(110) == {"e": ["a", "a", "b", "b"]}
    assert queue_usage(world.state, "default").gpus == 4


def test_a_growth_that_was_not_written_is_decided_again_on_what_the_job_is_now(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 2))
    e = runs(sched, "e", "a", elastic=(1, 2))
    assert grown(world.feed(e), 100) == {"e": ["a", "a"]}
    assert grown(world.feed(wrote(e, 2, message="progress")), 101) == {"e": ["a", "a"]}
    held = wrote(e, 3, intent=Intent.SUSPEND, phase=Phase.STOPPING)
    assert grown(world.feed(held), 102) == {}
    assert world.state.nodes.free_gpu.sum() == 1


@pytest.mark.parametrize("intent", [Intent.RESIZE, Intent.PREEMPT])
def test_it_grows_at_most_once_in_ten_minutes(intent: Intent, sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 2))
    e = runs(sched, "e", "a", elastic=(1, 2), saved=200)
    world.feed(wrote(e, attempts=(ended(sched, 50).model_copy(update={"intent": intent}),)))
    assert grown(world, 100) == {}
    assert world.decide(100).wake_at == sched.at(650)
    assert grown(world, 650) == {"e": ["a", "a"]}


def test_it_grows_only_for_more_than_its_restart_costs(sched: SimpleNamespace) -> None:
    # 1 worker more for 600 s at least; that costs 30 s of two, and 1 s of one per second not saved.
    world = sched.World().feed(sched.queue(), sched.node("a", 2))
    world.feed(runs(sched, "e", "a", elastic=(1, 2), saved=0))
    assert grown(world, 600) == {}, "540 s not saved are the most that it may lose"
    assert world.decide(600).wake_at is None, "time alone makes it no better"
    world.feed(runs(sched, "e", "a", elastic=(1, 2), saved=590, version=3))
    assert grown(world, 601) == {"e": ["a", "a"]}, "it has saved"

    world = sched.World().feed(sched.queue(), sched.node("a", 4))
    world.feed(runs(sched, "e", "a", elastic=(1, 4), saved=None))
    assert grown(world, 599) == {"e": ["a"] * 4}, "three more gain more each second than is not saved"


def test_what_is_deleted_with_its_pods_does_not_count_as_saved(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 2))
    gone = Condition(type=CHECKPOINTS_CONDITION, status="False", reason="EmptyFolder", last_transition_time=sched.at(0))
    e = runs(sched, "e", "a", elastic=(1, 2), saved=600)
    assert grown(world.feed(wrote(e, conditions=(gone,))), 600) == {}
    assert grown(world.feed(wrote(e, 3)), 600) == {"e": ["a", "a"]}


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("it has failed and is held", {"progress": Progress(at=0, held=Held(since=0, until=9e9, exit_code=1))}),
        ("it is stalled", {"progress": Progress(at=0, stalled=Stalled(attempt=1, since=0, until=9e9, step=1))}),
        ("its GPUs are idle", {"usage": JobUsage(idle_since=datetime(2026, 11, 21, tzinfo=UTC))}),
        ("it is being stopped", {"phase": Phase.STOPPING, "intent": Intent.SUSPEND}),
        ("it has not started yet", {"phase": Phase.STARTING, "started_at": None}),
    ],
)
def test_one_that_does_not_train_does_not_grow(sched: SimpleNamespace, case: str, status: dict[str, Any]) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 2))
    e = runs(sched, "e", "a", elastic=(1, 2))
    assert grown(world.feed(wrote(e, **status)), 100) == {}, case
    assert grown(world.feed(wrote(e, 3)), 100) == {"e": ["a", "a"]}


def test_one_that_ends_soon_does_not_grow(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 2))
    e = runs(sched, "e", "a", elastic=(1, 2))
    near = Progress(at=0, step=95, total_steps=100, checkpoint=e.status.progress.checkpoint)
    assert grown(world.feed(wrote(e, progress=near)), 100) == {}
    assert grown(world.feed(wrote(e, 3, progress=near.model_copy(update={"step": 10}))), 100) == {"e": ["a", "a"]}


@given(
    rooms=st.lists(st.integers(2, 6), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    gpus=st.integers(1, 4),
    workers=st.integers(1, 2),
)
@examples(80)
def test_shrinking_is_tried_first_and_takes_no_worker_that_is_not_needed(
    sched: SimpleNamespace, rooms: list[int], seed: int, gpus: int, workers: int
) -> None:
    """Against brute force: every way to shrink the elastic jobs, each to some of the workers that it has. (For a gang
    the search is greedy: it may miss one.)"""
    rng = Random(seed)
    names = [f"n{i}" for i in range(len(rooms))]
    free = dict(zip(names, rooms, strict=True))
    jobs = []
    for i in range(rng.randint(1, 3)):
        on = sorted(rng.choice([name for name in names if free[name]] or [""]) for _ in range(rng.randint(1, 3)))
        if "" in on or any(free[name] < on.count(name) for name in on):
            continue
        for name in on:
            free[name] -= 1
        jobs.append(runs(sched, f"e{i}", *on, elastic=(rng.randint(1, len(on)), len(on))))
    for name in names:
        jobs += [run(sched, f"v{name}{i}", name, saved=100) for i in range(rng.randint(0, free[name]))]
        free[name] -= sum(one.metadata.name.startswith(f"v{name}") for one in jobs)
    world = sched.World().feed(
        preempting(sched.queue()), *(sched.node(n, r) for n, r in zip(names, rooms, strict=True))
    )
    world.feed(*jobs, sched.job("x", gpus, workers=workers, priority=1))
    decided = world.decide(100)
    if sum(room // gpus for room in free.values()) >= workers:
        assert decided.starts and not decided.claims
        return

    def starts(given: Counter[str]) -> bool:
        return sum((free[name] + given[name]) // gpus for name in names) >= workers

    elastic = [one for one in jobs if one.spec.elastic is not None]
    ways = product(*([Counter(way) for way in given_up(one)] for one in elastic))
    enough = workers == 1 and any(starts(sum(way, Counter())) for way in ways)
    for change in (one for one in decided.claims if one.key.name == "x"):
        shrunk = {one.name: one for one in change.claim.victims if one.keeps}
        assert not enough or len(shrunk) == len(change.claim.victims), "none is stopped whole"
        given = Counter[str]()
        for one in change.claim.victims:
            job = next(job for job in jobs if job.metadata.name == one.name)
            had = Counter(placed.node for placed in job.status.placement)
            left = Counter(placed.node for placed in one.keeps)
            assert left <= had and (not one.keeps or len(one.keeps) >= job.spec.elastic.min)
            given += had - left
        assert starts(given)
    assert not enough or sched.key("x") in [one.key for one in decided.claims]


def given_up(job: TrainingJob) -> Iterator[tuple[str, ...]]:
    nodes = [placed.node for placed in job.status.placement]
    for count in range(len(nodes) - job.spec.elastic.min + 1):
        yield from combinations(nodes, count)


class Growing(History):
    """A history in which jobs train from when their start is written, have always just saved, and what is decided about
    their size is written at once."""

    def play(self, action: tuple[Any, ...]) -> tuple[Start, ...]:
        verb, name = action[:2]
        job = self.jobs.get(name) if isinstance(name, str) else None
        if verb == "decide":
            self.now += action[1]
            decided = decide(self.state, self.sched.at(self.now))
            self.starting |= {start.key.name: start for start in decided.starts}
            for change in decided.claims:
                self._change(change.key.name, claim=change.claim)
            return decided.starts
        if verb == "written" and name in self.starting and job is not None:
            at = self.sched.at(self.now)
            trains = {"phase": Phase.RUNNING, "started_at": at, "placed_at": at, "claim": None}
            start = self.starting.pop(name)
            saved = Progress(at=0, checkpoint=Checkpoint(step=1, at=4e9))
            placed = {"placement": start.placement, "gpu_type": start.gpu_type, "attempt": job.status.attempt + 1}
            self._change(name, progress=saved, **trains, **placed)
        elif verb == "end" and job is not None and job.status.placement:
            self._change(name, phase=Phase.SUCCEEDED, placement=(), claim=None)
        else:
            super().play(action)  # withdrawn with a claim: it goes on there
        return ()

    def store(self) -> list[Any]:
        found = super().store()
        gone = [one for one in found if isinstance(one, TrainingJob) and one.metadata.name in self.starting]
        return [one for one in found if one not in gone] + [wrote(one, 999, claim=None) for one in gone]


@given(history=actions)
@examples(60, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_what_grows_is_counted_as_the_objects_say(
    history: list[tuple[Any, ...]], sched: SimpleNamespace
) -> None:
    world = Growing(sched)
    for action in [*history, *[("written", f"j{at}") for at in range(9)], ("decide", 700), ("decide", 0)]:
        world.play(action)
        for job in world.jobs.values():
            sizes = [len(one) for one in (job.status.placement, getattr(job.status.claim, "placement", ())) if one]
            assert all(job.spec.least_workers <= size <= job.spec.most_workers for size in sizes)
        if action[0] == "decide":
            before = sched.fingerprint(world.state)
            with world.state.what_if():
                world.state.forget_node("a")
                decide(world.state, sched.at(world.now + 900))
            assert sched.fingerprint(world.state) == before
            again = world.rebuilt()
            accounts, expected = sched.accounting(world.state), sched.accounting(again)
            assert (accounts["nodes"], accounts["free"]) == (expected["nodes"], expected["free"])
            assert world.state.elastic.placed.keys() <= again.elastic.placed.keys(), (
                "those whose start is decided come with it"
            )
