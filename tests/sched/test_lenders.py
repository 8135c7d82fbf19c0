"""What others can be made to give back to an owner, against a model that looks at one job after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.sched.entries import Entry
from stoker.sched.gpu_choice import choices
from stoker.sched.leaving import Leaving
from stoker.sched.queue_state import QueueState
from stoker.sched.state import SchedulerState
from stoker.sched.stoppable import Stoppable
from stoker.spec.job import Phase
from stoker.why.explain import explain
from tests.support.examples import examples
from tests.support.preempting import claims, cost_of, preempting, run, wrote

PARENTS = {
    "top": None,
    "side": None,
    "f": None,
    "mid": "top",
    "c": "top",
    "a": "mid",
    "b": "mid",
    "d": "side",
    "e": "side",
}
LEAVES = "abcdef"
TYPES = ["h100", "a100"]
AMOUNTS = ["gpus", *TYPES]
own = st.fixed_dictionaries(
    {name: st.fixed_dictionaries(dict.fromkeys(AMOUNTS, st.sampled_from([0, 0, 1, 2]))) for name in PARENTS}
)
"""0: names none."""


def with_those_below(own: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """As much as the queues below it have together, and its own."""
    found = {name: dict(amounts) for name, amounts in own.items()}
    for name in reversed(PARENTS):
        above = PARENTS[name]
        for amount in AMOUNTS if above else ():
            found[above][amount] += found[name][amount]
    return found


jobs = st.lists(
    st.tuples(st.sampled_from(LEAVES), st.integers(0, 3), st.integers(0, 99), st.sampled_from(TYPES)), max_size=14
)


def lent(state: SchedulerState, part: QueueState, gpu_type: str, now: Any) -> list[Entry]:
    """What the part can be made to give back, the cheapest first; `gpu_type`: asked for as such."""
    own = [one for key in part.holding if (one := state.entries[key]).gpu_type == gpu_type or not gpu_type]
    inside = sorted(
        [*own, *(one for child in part.children for one in lent(state, child, gpu_type, now))],
        key=lambda one: (cost_of(one, now), one.key),
    )
    found: list[Entry] = []

    def has(name: str) -> int:
        held = part.typed[name].used.gpus if name else part.used.gpus
        return held - sum(one.request.totals.gpus for one in found if one.gpu_type == name or not name)

    def borrows(name: str) -> int:
        if name:
            return has(name) - (part.typed[name].guarantee[0] or 0) if name in part.typed else 0
        typed = sum(min(has(one), account.guarantee[0] or 0) for one, account in part.typed.items())
        return has("") - max(part.guarantee[0] or 0, typed)

    for one in inside:
        if borrows(gpu_type) <= 0:
            break
        is_kept = one.gpu_type in part.typed and part.typed[one.gpu_type].guarantee[0] and borrows(one.gpu_type) <= 0
        if gpu_type or not is_kept:
            found.append(one)
    return found


def taken_back(state: SchedulerState, queue: QueueState, gpus: int, gpu_type: str, now: Any) -> set[str]:
    found, sides = set[str](), list(queue.path)
    for at, side in enumerate(sides):
        owners = [one for one in sides[: at + 1] if any(mine.guarantee[0] is not None for mine in one.own(gpu_type))]
        named = [one for one in (owners[-1].own(gpu_type) if owners else ()) if one.guarantee[0] is not None]
        if not named or any(one.used.gpus + gpus > (one.guarantee[0] or 0) for one in named):
            continue
        asked = gpu_type if named[-1] is not owners[-1] else ""
        beside = side.parent.children if side.parent else [one for one in state.queues.values() if one.parent is None]
        found |= {one.key.name for part in beside if part is not side for one in lent(state, part, asked, now)}
    return found


@examples(150)
@given(guarantees=own.map(with_those_below), jobs=jobs, leaf=st.sampled_from(LEAVES), gpus=st.integers(1, 3))
def test_an_owner_may_take_what_others_hold_beyond_their_guarantees(
    guarantees: dict[str, dict[str, int]], jobs: list[Any], leaf: str, gpus: int, sched: SimpleNamespace
) -> None:
    world, now = sched.World(), sched.at(1000)
    for name, above in PARENTS.items():
        guaranteed = {"gpu_types": {one: guarantees[name][one] for one in TYPES if guarantees[name][one]}}
        world.feed(sched.queue(name, parent=above, guarantee=guarantees[name]["gpus"] or None, guaranteed=guaranteed))
    world.feed(*(sched.node(f"n-{name}", 64, model=f"NVIDIA {name.upper()}") for name in TYPES))
    for number, (queue, held, since, gpu_type) in enumerate(jobs):
        job = run(sched, f"j{number:02}", f"n-{gpu_type}", gpus=held, queue=queue, since=since)
        world.feed(wrote(job, gpu_type=gpu_type if held else ""))
    world.feed(sched.job("x", gpus, queue=leaf))
    state = world.state
    entry = state.entries[sched.key("x")]
    for request in choices(state, entry.queue, entry.request):
        expected = taken_back(state, entry.queue, gpus, request.filter.type, now)
        if not entry.queue.is_guaranteed:
            assert expected == set()
            continue
        found = Stoppable(state, now.timestamp(), Leaving(state)).for_job(entry, request)
        names = [one.key.name for row in found.rows if (one := state.running.jobs[row]) is not None]
        assert set(names) == expected
        assert names == sorted(names, key=lambda name: (cost_of(state.entries[sched.key(name)], now), name))


def test_gpus_within_the_guarantee_of_their_type_are_not_taken_for_an_owner_of_any(sched: SimpleNamespace) -> None:
    world = sched.World().feed(*(sched.node(f"n-{name}", 4, model=f"NVIDIA {name.upper()}") for name in TYPES))
    world.feed(sched.queue("own", guarantee=4), sched.queue("free"))
    world.feed(sched.queue("typed", guaranteed={"gpu_types": {"a100": 4}}))
    for number in range(4):
        world.feed(wrote(run(sched, f"typed-{number}", "n-a100", queue="typed", since=99), gpu_type="a100"))
    costly = [run(sched, f"free-{number}", "n-h100", queue="free") for number in range(4)]
    kept = [run(sched, f"free-{number}", "n-h100", queue="free", preemptible=False) for number in range(4)]
    world.feed(*(wrote(job, gpu_type="h100") for job in kept), sched.job("x", 4, queue="own"))
    assert claims(world.decide(100)) == {}
    [lent] = [one for one in explain(world.state, sched.key("x"), sched.at(100)).blockers if one.borrowed]
    assert lent.borrowed == {"free": 4}
    world.feed(*(wrote(job, 3, gpu_type="h100") for job in costly))
    assert claims(world.decide(101)) == {"x": [f"free-{number}" for number in range(4)]}


def test_a_queue_that_borrows_no_gpus_gives_back_no_cores_to_an_owner_of_gpus(sched: SimpleNamespace) -> None:
    world = sched.World().feed(*(sched.node(f"n-{name}", 2, cpu=8, model=f"NVIDIA {name.upper()}") for name in TYPES))
    world.feed(sched.queue("own", guarantee=2), sched.queue("typed", guaranteed={"gpu_types": {"a100": 2}}))
    world.feed(wrote(run(sched, "gpus", "n-a100", gpus=2, queue="typed"), gpu_type="a100"))
    world.feed(run(sched, "cores", "n-h100", gpus=0, cpu="8", queue="typed"), sched.job("x", 2, queue="own", cpu="4"))
    assert claims(world.decide(100)) == {}


def test_what_a_queue_starts_in_the_same_decide_counts_against_its_guarantee(sched: SimpleNamespace) -> None:
    """The job of higher priority takes the GPU that got free, and with it what is left of the guarantee."""
    world = sched.World().feed(sched.queue("own", guarantee=2), preempting(sched.queue("lent"), "100s"))
    world.feed(sched.node("a", 2), sched.node("b", 2, cpu=3), run(sched, "mine", "b", queue="own"))
    world.feed(*(run(sched, name, "a", queue="lent") for name in ("old", "older")))
    last = run(sched, "last", "b", queue="lent", preemptible=False)
    world.feed(last, sched.job("first", queue="own", priority=1), sched.job("second", queue="own", cpu="4"))
    assert claims(world.decide(50)) == {}, "nothing has run long enough"
    world.feed(wrote(last, phase=Phase.SUCCEEDED, placement=()))
    decided = world.decide(200)
    assert [start.key.name for start in decided.starts] == ["first"]
    assert claims(decided) == {}, "the second would be beyond the guarantee"
