"""What holds whatever happens, in whatever order: random histories of a small cluster, checked by brute force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stoker.sched import reservations, wake
from stoker.sched.decide import Start, decide
from stoker.sched.occupancy import node_room
from stoker.sched.place import place
from stoker.sched.reservations import MAX_RESERVATIONS, Kept, Reservations
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.reasons import Code, QueueLevel
from stoker.why.explain import explain
from stoker.why.reasons import Reasons
from tests.support.examples import examples
from tests.support.sched_counts import (
    held_below,
    held_in_units,
    held_of_type,
    holders_below,
    may_use,
    names_types,
    path,
    room,
    runtime_of,
    total_cores,
    used,
)
from tests.support.sched_histories import History, actions

CHECKED = examples(75, suppress_health_check=[HealthCheck.too_slow])


@CHECKED
@given(history=actions, places=st.sampled_from([MAX_RESERVATIONS, 2]))
def test_any_history(history: list[tuple[Any, ...]], places: int, sched: SimpleNamespace) -> None:
    with mock.patch.multiple(reservations, MAX_RESERVATIONS=places), mock.patch.multiple(wake, MAX_RESERVATIONS=places):
        _check_history(history, sched)


def _check_history(history: list[tuple[Any, ...]], sched: SimpleNamespace) -> None:
    world = History(sched)
    for action in history:
        starts = world.play(action)
        _check_starts(world, starts, sched)
        if action[0] == "decide":
            _check_rebuilt(world, sched)
    world.play(("decide", 0))
    again = decide(world.state, sched.at(world.now))
    assert again.starts == (), "not drained"
    _check_reasons(world, Reasons(world.state, sched.at(world.now)), sched)
    _check_rebuilt(world, sched)
    before = sched.fingerprint(world.state)
    for job in list(world.state.entries):
        _check_levels(world, world.jobs[job.name], explain(world.state, job, sched.at(world.now)).queues)
        explain(world.state, job, sched.at(world.now - 500))  # clocks step back
    assert sched.fingerprint(world.state) == before
    for item in world.store():
        if not isinstance(item, TrainingJob) or item.key.name not in world.starting:
            sched.World(world.state).feed(item)
    assert sched.fingerprint(world.state) == before, "observing again what is known changed something"


def _check_rebuilt(world: History, sched: SimpleNamespace) -> None:
    rebuilt = sched.World(world.rebuilt())
    rebuilt.state.costs.update(world.state.costs)  # as the jobs' status would have them
    rebuilt.state.past_costs.update(world.state.past_costs)
    assert rebuilt.starts(world.now) == {}, "a state built from scratch would start more"
    assert _nonzero(sched.accounting(rebuilt.state)) == _nonzero(sched.accounting(world.state))


def _nonzero(accounting: dict[str, Any]) -> dict[str, Any]:
    return {**accounting, "queues": {n: u for n, u in accounting["queues"].items() if any(u)}}


def _check_starts(world: History, starts: tuple[Start, ...], sched: SimpleNamespace) -> None:
    touched, queues = set(), set()
    for start in starts:
        job = world.jobs[start.key.name]
        assert [placed.worker for placed in start.placement] == list(range(len(start.placement)))
        assert job.spec.least_workers <= len(start.placement) <= job.spec.workers, "all of a gang or none"
        resource = job.spec.gpu.resource if job.spec.gpus_per_worker else ""
        touched |= {(placed.node, resource, job.cpu_milli > 0) for placed in start.placement}
        queues.add(job.spec.queue)
        avoid = world.state.entries[job.key].avoided(sched.at(world.now))
        assert not avoid & {placed.node for placed in start.placement}
        runtime = runtime_of(world, job)
        assert runtime is not None
        assert all(may_use(world.nodes[placed.node], job, runtime) for placed in start.placement)
        for placed in start.placement:
            node = world.nodes[placed.node]
            for extended in runtime.extended_resources:
                assert used(world, placed.node)[extended] <= node.status.extended.get(extended, 0)
        if len(start.placement) > 1 and job.spec.topology.required:
            [zone] = {world.nodes[placed.node].metadata.labels.get("zone") for placed in start.placement}
            assert zone is not None
        later = [
            other.key.name
            for other in world.jobs.values()
            if other.key in world.state.entries
            and world.state.entries[other.key].lane is not None
            and world.state.entries[other.key].request == world.state.entries[job.key].request
            and other.spec.queue == job.spec.queue
            and world.state.entries[other.key].avoided(sched.at(world.now)) == avoid
            and world.state.entries[other.key].order < world.state.entries[job.key].order
        ]
        assert not later, f"{later} are the same and come first"
    for name, resource, cpu in touched:
        usage = node_room(world.state, name)
        assert usage.ready and usage.free_memory_bytes >= 0
        held, status = used(world, name), world.nodes[name].status
        offered = sum(gpu.resource == resource and not gpu.unavailable for gpu in status.gpus)
        assert not resource or held[resource] <= offered
        assert not cpu or held["cpu"] <= status.cpu_milli
        assert not cpu or usage.free_cpu_milli >= 0
    for name in queues:
        started = [job for start in starts if (job := world.jobs[start.key.name]).spec.queue == name]
        assert not any(path(world, other)[1:2] == [name] for other in world.queues), "jobs run in leaves"
        for one in path(world, name):
            limit, (gpus, cpu) = world.queues[one].spec.limit, held_below(world, one)
            if limit.gpus is not None and any(job.spec.gpus_per_worker for job in started):
                assert gpus <= limit.gpus
            if limit.cpu is not None and any(job.cpu_milli for job in started):
                assert cpu <= int(limit.cpu) * 1000
            types = {start.gpu_type for start in starts if world.jobs[start.key.name].spec.queue == name}
            for gpu_type in types & set(limit.of_types):
                assert held_of_type(world, one, gpu_type) <= limit.of_types[gpu_type]
    if names_types(world):
        assert all(start.gpu_type for start in starts if world.jobs[start.key.name].spec.gpus_per_worker)
    for start in starts:
        for placed in start.placement if start.gpu_type else ():
            spec, gpus_there = world.jobs[start.key.name].spec, world.nodes[placed.node].status.gpus
            whole = spec.gpu.resource == GPU_RESOURCE
            there = [
                gpu.model.lower() if whole else "mig-1g.10gb"
                for gpu in gpus_there
                if not gpu.unavailable and gpu.resource == spec.gpu.resource
            ]
            assert there.count(start.gpu_type) >= spec.gpus_per_worker


def _check_reasons(world: History, reasons: Any, sched: SimpleNamespace) -> None:
    waiting = {k for k, e in world.state.entries.items() if e.pending}
    assert set(reasons) == waiting and len(reasons) == len(waiting)
    for key in waiting:
        codes = {str(blocker.code) for blocker in reasons[key]}
        assert codes, f"{key} waits for no reason"
        job = world.jobs[key.name]
        queue = world.queues.get(job.spec.queue)
        assert ("QueueMissing" in codes) == (queue is None)
        assert ("BackingOff" in codes) == bool(job.status.not_before and job.status.not_before > sched.at(world.now))
        assert ("RuntimeMissing" in codes) == (runtime_of(world, job) is None)
        if "NeverFits" in codes or names_types(world):
            continue  # with types: tests/sched/test_gpu_types.py
        limits = {one: world.queues[one].spec.limit for one in path(world, job.spec.queue)} if queue is not None else {}
        assert {
            (found.queue, found.resource, found.short, found.of, frozenset(found.jobs))
            for found in reasons[key]
            if found.code is Code.QUEUE_LIMIT
        } == {
            (one, resource, held + asked - limit, asked, holders_below(world, one, resource))
            for one, spec in limits.items()
            for resource, held, asked, limit in zip(
                *(
                    ("gpus", "cpu"),
                    held_in_units(world, one),
                    (job.spec.least_workers * job.spec.gpus_per_worker, total_cores(job)),
                ),
                (spec.gpus, None if spec.cpu is None else float(spec.cpu)),
                strict=True,
            )
            if limit is not None and asked and held + asked > limit
        }
        avoid = world.state.entries[key].avoided(sched.at(world.now))
        fits = room(world, job, avoid)
        if fits >= 0 and "RuntimeMissing" not in codes:
            assert bool(codes & {"NoCapacity", "NodesBlamed"}) == (fits < job.spec.least_workers)
        for blocker in reasons[key]:
            if blocker.short is not None:
                assert blocker.short > 0 and blocker.of is not None and blocker.of > 0


def _check_levels(world: History, job: TrainingJob, levels: tuple[QueueLevel, ...]) -> None:
    """Of jobs that wait, run or have failed: each queue above, with what it holds and may."""
    done = job.status.phase in (Phase.SUCCEEDED, Phase.CANCELLED)
    expected = [] if done or job.spec.queue not in world.queues else path(world, job.spec.queue)
    assert [level.name for level in levels] == expected
    for level in levels:
        limit = world.queues[level.name].spec.limit
        held = dict(zip(("gpus", "cpu"), held_in_units(world, level.name), strict=True))
        assert {resource: level.held[resource] for resource in held} == held
        assert level.limit == {
            **({} if limit.gpus is None else {"gpus": limit.gpus}),
            **({} if limit.cpu is None else {"cpu": float(limit.cpu)}),
            **{f"gpus.{gpu_type}": count for gpu_type, count in limit.of_types.items()},
        }
        for gpu_type in limit.of_types:
            assert level.held[f"gpus.{gpu_type}"] == held_of_type(world, level.name, gpu_type)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each reservation was that of the last decide, which is then to be what a search finds."""
    found: list[bool] = []
    as_before, choose = Reservations._as_before, Reservations._choose

    def checked(self: Reservations, order: Any, lane: Any, requests: Any) -> Any:
        chosen = choose(self, order, lane, requests)
        with monkeypatch.context() as patch:
            patch.setattr(Reservations, "_as_before", lambda *args: found.append(as_before(*args) is not None))
            anew = choose(self, order, lane, requests)
        assert (anew and (anew.request, anew.spread, anew.settled)) == (
            chosen and (chosen.request, chosen.spread, chosen.settled)
        )
        return chosen

    monkeypatch.setattr(Reservations, "_choose", checked)
    return found


@pytest.fixture
def placed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever leaves room for reservations goes where a search beside them finds."""
    leave_room = Kept.leave_room

    def checked(self: Kept, lane: Any, request: Any, spread: Any) -> Any:
        found = leave_room(self, lane, request, spread)
        if found is not None:
            assert found == place(self._table, request, lane.avoid, self.nodes)
        return found

    monkeypatch.setattr(Kept, "leave_room", checked)


@examples(75, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(history=actions)
def test_what_is_not_searched_anew_is_what_a_search_would_find(
    history: list[tuple[Any, ...]], sched: SimpleNamespace, looked_up: list[bool], placed_anew: None
) -> None:
    world = History(sched)
    for action in [*history, *[("decide", 200)] * 3]:
        world.play(action)


def test_a_reservation_is_searched_anew_once_its_own_node_could_hold_more(
    sched: SimpleNamespace, looked_up: list[bool]
) -> None:
    world = sched.World().feed(
        sched.node("a", 4), sched.node("b", 1), sched.queue(budget=100), sched.other("x/o", "a", 2)
    )
    world.feed(sched.job("r", 2, on=["a"]), sched.job("gang", 1, workers=3))
    world.feed(sched.node("z", 0), *(sched.job(f"r{i}", 0, on=["z"]) for i in range(3)))
    assert world.starts(399) == {}
    for i in range(3):
        world.state.forget_job(sched.key(f"r{i}"))
        assert world.starts(400 + i) == {}
    assert looked_up[-1]
    world.state.forget_other(sched.key("o", "x"))
    world.feed(sched.job("first", 2, priority=1, queued=401))
    assert world.starts(404) == {"first": ["a"]}
    assert not looked_up[-1]


def test_reservations_are_mostly_not_searched_anew(sched: SimpleNamespace, looked_up: list[bool]) -> None:
    world = sched.World().feed(*(sched.node(f"n{i}", 4) for i in range(4)), sched.queue(budget=100))
    world.feed(*(sched.job(f"r{i}", 1, on=[f"n{i // 4}"]) for i in range(16)))
    world.feed(sched.job("gang", 4, workers=2), sched.job("other", 4, queued=1), sched.job("next", 1, queued=2))
    world.decide(400)
    for i in range(3):
        world.state.forget_job(sched.key(f"r{i}"))
        assert world.starts(401 + i) == {}
    assert looked_up[-6:] == [True] * 6


def test_reservations_on_one_node_are_not_searched_anew_as_turns_change(
    sched: SimpleNamespace, looked_up: list[bool]
) -> None:
    world = sched.World().feed(sched.node("n", 8), sched.node("m", 3, model="Tesla T4"), sched.queue("c"))
    world.feed(sched.job("r", 8, queue="c", on=["n"]))
    for name in "ab":
        world.feed(sched.queue(name, budget=100), sched.job(name, 4, queue=name, models=("A100",)))
    running = [sched.job(f"r{i}", 1, queue="a", on=["m"]) for i in range(3)]
    world.feed(*running, sched.job("s", 3, queue="b", models=("T4",), queued=1))
    turns = []
    for at, job in enumerate([None, *running], 400):
        looked_up.clear()
        if job is not None:
            world.state.forget_job(job.key)
        world.decide(at)
        turns.append([one.order[2].name for one in world.state.plan])
    assert turns == [["b", "s", "a"]] * 3 + [["a", "b"]] and looked_up == [True, True], "also by another order"


@CHECKED
@given(history=actions, imagined=actions)
def test_rollback_restores_the_state_exactly(
    history: list[tuple[Any, ...]], imagined: list[tuple[Any, ...]], sched: SimpleNamespace
) -> None:
    world = History(sched)
    for action in history:
        world.play(action)
    before = sched.fingerprint(world.state)
    mark = world.state.checkpoint()
    for action in imagined[: len(imagined) // 2]:
        world.play(action)
    inner = sched.fingerprint(world.state)
    with world.state.what_if():
        for action in imagined[len(imagined) // 2 :]:
            world.play(action)
    assert sched.fingerprint(world.state) == inner
    world.state.rollback(mark)
    assert sched.fingerprint(world.state) == before
