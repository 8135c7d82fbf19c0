"""What others can be made to give back to an owner, against a model that looks at one job after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.sched.entries import Entry
from stoker.sched.leaving import Leaving
from stoker.sched.queue_state import QueueState
from stoker.sched.state import SchedulerState
from stoker.sched.stoppable import Stoppable
from stoker.spec.job import Phase
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
guarantees = st.fixed_dictionaries({name: st.sampled_from([None, None, 0, 1, 2, 4]) for name in PARENTS})
jobs = st.lists(st.tuples(st.sampled_from(LEAVES), st.integers(1, 3), st.integers(0, 99)), max_size=14)


def lent(state: SchedulerState, part: QueueState, now: Any) -> list[Entry]:
    """What the part can be made to give back, the cheapest first."""
    own = [state.entries[key] for key in part.holding]
    inside = sorted(
        [*own, *(one for child in part.children for one in lent(state, child, now))],
        key=lambda one: (cost_of(one, now), one.key),
    )
    found: list[Entry] = []
    for one in inside:
        given = sum(other.request.totals.gpus for other in found)
        if part.used.gpus - given <= (part.guarantee[0] or 0):
            break
        found.append(one)
    return found


def taken_back(state: SchedulerState, queue: QueueState, gpus: int, now: Any) -> set[str]:
    found, sides = set[str](), list(queue.path)
    for at, side in enumerate(sides):
        owners = [one for one in sides[: at + 1] if one.guarantee[0] is not None]
        if not owners or owners[-1].used.gpus + gpus > (owners[-1].guarantee[0] or 0):
            continue
        beside = side.parent.children if side.parent else [one for one in state.queues.values() if one.parent is None]
        found |= {one.key.name for part in beside if part is not side for one in lent(state, part, now)}
    return found


@examples(150)
@given(guarantees=guarantees, jobs=jobs, leaf=st.sampled_from(LEAVES), gpus=st.integers(1, 3))
def test_an_owner_may_take_what_others_hold_beyond_their_guarantees(
    guarantees: dict[str, int | None], jobs: list[Any], leaf: str, gpus: int, sched: SimpleNamespace
) -> None:
    world, now = sched.World(), sched.at(1000)
    world.feed(*(sched.queue(name, parent=above, guarantee=guarantees[name]) for name, above in PARENTS.items()))
    world.feed(sched.node("n", 64))
    for number, (queue, held, since) in enumerate(jobs):
        world.feed(run(sched, f"j{number:02}", "n", gpus=held, queue=queue, since=since))
    world.feed(sched.job("x", gpus, queue=leaf))
    state = world.state
    entry = state.entries[sched.key("x")]
    if not entry.queue.is_guaranteed:
        assert taken_back(state, entry.queue, gpus, now) == set()
        return
    found = Stoppable(state, now.timestamp(), Leaving(state)).for_job(entry, entry.request)
    names = [one.key.name for row in found.rows if (one := state.running.jobs[row]) is not None]
    assert set(names) == taken_back(state, entry.queue, gpus, now)
    assert names == sorted(names, key=lambda name: (cost_of(state.entries[sched.key(name)], now), name))


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
