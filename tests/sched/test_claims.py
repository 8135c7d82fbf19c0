"""Claims: the room that is kept for a job until its victims have gone, and when that ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.sched.occupancy import node_room, queue_usage
from stoker.spec.job import AttemptEnd, Claim, Phase
from stoker.spec.outcome import Intent
from tests.support.preempting import claims, preempting, run, wrote


def preempted(sched: SimpleNamespace, *more: Any) -> Any:
    """x has u and v stopped on node a."""
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 2), *more)
    world.running = [run(sched, name, "a", since=50) for name in "uv"]
    world.feed(*world.running, sched.job("x", 2, priority=1))
    (change,) = world.decide(100).claims
    world.x = wrote(sched.job("x", 2, priority=1), claim=change.claim)
    return world.feed(world.x)


def test_the_room_is_kept_until_every_victim_has_gone_and_then_the_job_starts_there(sched: SimpleNamespace) -> None:
    world = preempted(sched, sched.queue("other"))
    world.feed(sched.job("small", queue="other"), sched.job("top", priority=9))
    u, v = world.running
    pods = [sched.pod(one, on="a", going=True) for one in (u, v)]
    world.feed(*pods)
    for one in (u, v):
        stopping = wrote(one, phase=Phase.STOPPING, intent=Intent.PREEMPT)
        world.feed(stopping)
        assert world.starts(101) == {}
        world.feed(wrote(stopping, 3, phase=Phase.QUEUED, intent=Intent.NONE, placement=()))
        assert world.starts(102) == {}, "its pod is still there"
    for pod in pods:
        assert world.starts(103) == {}, "neither the claimant nor another in half of its room"
        world.state.forget_pod(pod.key)
    assert world.starts(104) == {"x": ["a"]}
    assert queue_usage(world.state, "default").gpus == 2


def test_a_new_leader_comes_to_the_same_from_the_objects(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    again = sched.World().feed(world.x, *world.running, sched.node("a", 2), preempting(sched.queue()))
    assert claims(again.decide(101)) == {}
    assert again.starts(101) == {}
    assert again.state.victims == world.state.victims
    assert again.reasons(101)[sched.key("x")][0].code == "Preempting"


def test_what_is_held_for_a_claim_does_not_count_as_used(sched: SimpleNamespace) -> None:
    state = preempted(sched).state
    usage = queue_usage(state, "default")
    assert (usage.gpus, usage.running, usage.pending) == (2, 2, 1)
    room = node_room(state, "a")
    assert (room.free_gpus, [key.name for key in room.jobs]) == (0, ["u", "v"])


def test_a_better_place_ends_a_claim(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    world.feed(sched.node("b", 2))
    assert world.starts(101) == {"x": ["b"]}
    assert world.state.victims == {}


def test_a_claim_that_counted_on_anothers_victim_is_planned_anew_once_that_one_stays(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 3))
    world.feed(run(sched, "big", "a", gpus=2, since=90), run(sched, "v", "a"))
    x, y = sched.job("x", priority=2), sched.job("y", 2, priority=1)
    world.feed(x, y)
    decided = world.decide(100)
    assert claims(decided) == {"x": ["big"], "y": ["v"]}, "y takes what big leaves beside x"
    for one, change in zip((x, y), decided.claims, strict=True):
        world.feed(wrote(one, claim=change.claim))
    world.feed(wrote(x.model_copy(update={"spec": x.spec.model_copy(update={"cancel": True})}), 3))
    assert claims(world.decide(101)) == {"y": ["big"]}


def test_a_claim_may_count_on_the_victim_of_a_claim_elsewhere(sched: SimpleNamespace) -> None:
    """It stands when something changes on its node."""
    queues = [preempting(sched.queue(name, gpus=2)) for name in "rp"]
    world = sched.World().feed(*queues, sched.queue("s"), sched.node("a", 4), sched.node("b", 4))
    world.feed(run(sched, "s1", "a", queue="s"), run(sched, "s2", "b", gpus=2, queue="s"))
    world.feed(*(run(sched, f"{name}-{node}", node, queue=name) for name in "rp" for node in "ab"))
    first, second = sched.job("x", 2, queue="r", priority=1), sched.job("y", 2, queue="p", priority=1, queued=1)
    world.feed(first)
    (change,) = world.decide(100).claims
    assert change.claim is not None and [one.node for one in change.claim.placement] == ["a"]
    world.feed(wrote(first, claim=change.claim), second)
    (change,) = world.decide(101).claims
    assert change.claim is not None and [one.node for one in change.claim.placement] == ["b"], "r-b leaves it, for x"
    world.feed(wrote(second, claim=change.claim), sched.other("them/pod", "b", cpu="1"))
    assert claims(world.decide(102)) == {}


def limited(sched: SimpleNamespace, gpus: int) -> list[Any]:
    """So many GPUs, all guaranteed to a queue below; what it leaves is lent to another."""
    return [
        sched.queue("top", gpus=gpus, guarantee=gpus),
        sched.queue("own", guarantee=gpus, parent="top"),
        sched.queue("lent", parent="top"),
    ]


def ended(job: Any) -> Any:
    return wrote(job, 3, phase=Phase.QUEUED, placement=())


def test_a_claim_starts_once_others_have_left_room_in_a_limit_above(sched: SimpleNamespace) -> None:
    """Its room on the nodes was there all along, and is not where its victims were."""
    world = sched.World().feed(*limited(sched, 2), *(sched.node(name, n) for name, n in (("a", 1), ("b", 1), ("c", 2))))
    stopped = [run(sched, name, node, queue="lent") for name, node in (("u", "a"), ("v", "b"))]
    x = sched.job("x", 2, queue="own")
    decided = world.feed(*stopped, x).decide(100)
    assert claims(decided) == {"x": ["u", "v"]}
    world.feed(wrote(x, claim=decided.claims[0].claim), ended(stopped[0]))
    assert world.starts(101) == {}
    world.feed(ended(stopped[1]))
    assert world.starts(102) == {"x": ["c"]}


def test_each_of_several_claims_starts_once_its_own_victims_have_left_a_limit(sched: SimpleNamespace) -> None:
    nodes = [*(sched.node(f"n{i}", 1) for i in range(4)), *(sched.node(name, 2) for name in "xy")]
    world = sched.World().feed(*limited(sched, 4), *nodes)
    stopped = [run(sched, f"u{i}", f"n{i}", queue="lent", since=i) for i in range(4)]
    both = [sched.job(name, 2, queue="own", queued=n) for n, name in enumerate("xy")]
    decided = world.feed(*stopped, *both).decide(100)
    assert claims(decided) == {"x": ["u2", "u3"], "y": ["u0", "u1"]}
    world.feed(*(wrote(one, claim=change.claim) for one, change in zip(both, decided.claims, strict=True)))
    world.feed(*map(ended, stopped[2:]))
    assert world.starts(101).keys() == {"x"}, "y's are still there"
    world.feed(*map(ended, stopped[:2]))
    assert world.starts(102).keys() == {"y"}


def test_a_claim_that_counted_on_what_anothers_victim_leaves_of_a_limit_is_planned_anew(sched: SimpleNamespace) -> None:
    world = sched.World().feed(*limited(sched, 4), sched.node("a", 2, cpu=2), sched.node("b", 2, cpu=2))
    world.feed(sched.node("c", 1), sched.node("d", 2))
    big = run(sched, "big", "a", gpus=2, queue="lent", since=90)
    world.feed(big, *(run(sched, name, "b", queue="lent") for name in "uv"))
    x, y = sched.job("x", queue="own"), sched.job("y", 2, queue="own", queued=1, cpu="8")
    decided = world.feed(x, y).decide(100)
    assert claims(decided) == {"x": ["big"], "y": ["u"]}, "y needs the rest of what big leaves of the limit"
    for one, change in zip((x, y), decided.claims, strict=True):
        world.feed(wrote(one, claim=change.claim))
    world.feed(wrote(x.model_copy(update={"spec": x.spec.model_copy(update={"cancel": True})}), 3))
    assert claims(world.decide(101)) == {"y": ["big"]}


@pytest.mark.parametrize("change", [{"suspend": True}, {"cancel": True}])
def test_a_claim_ends_with_what_it_is_for(change: dict[str, bool], sched: SimpleNamespace) -> None:
    world = preempted(sched)
    spec = world.x.spec.model_copy(update=change)
    world.feed(wrote(world.x.model_copy(update={"spec": spec}), 3))
    assert not world.state.claims.jobs and not world.state.victims


def test_victims_that_do_not_end_end_the_claim(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    u, v = world.running
    world.feed(*(wrote(one, phase=Phase.STOPPING, intent=Intent.PREEMPT) for one in (u, v)))
    assert world.decide(101).wake_at == sched.at(100 + 300)
    until = world.decide(400).wake_at
    assert until == sched.at(100 + 300 + 30), "five minutes, and the grace that they have to save"
    ended = wrote(u, 3, phase=Phase.QUEUED, placement=(), attempts=(_end(sched, 200),))
    world.feed(ended)
    assert claims(world.decide(430)) == {}, "one ended: that is progress"
    assert claims(world.decide(200 + 330)) == {"x": None}


def test_a_victim_that_gives_itself_years_to_save_keeps_the_claim_for_an_hour_of_them(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 1), sched.node("b", 1))
    u, v = run(sched, "u", "a", since=90), run(sched, "v", "b")
    spec = u.spec.model_copy(update={"checkpoint": u.spec.checkpoint.model_copy(update={"grace": "3650d"})})
    u = u.model_copy(update={"spec": spec})
    x = sched.job("x", priority=1)
    (change,) = world.feed(u, v, x).decide(100).claims
    assert change.claim is not None and [one.name for one in change.claim.victims] == ["u"]
    world.feed(wrote(x, claim=change.claim), wrote(u, phase=Phase.STOPPING, intent=Intent.PREEMPT))
    world.decide(101)
    assert claims(world.decide(100 + 300 + 3599)) == {}
    assert claims(world.decide(100 + 300 + 3600)) == {"x": ["v"]}


def test_what_a_claim_that_ends_had_kept_lets_another_start_without_its_victims(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 2), sched.node("b", 1))
    u, w, v = run(sched, "u", "a", since=90), run(sched, "w", "a"), run(sched, "v", "b", since=90)
    x, y = sched.job("x", workers=2, priority=2), sched.job("y", priority=1)
    decided = world.feed(u, v, w, x, y).decide(100)
    assert claims(decided) == {"x": ["u", "v"], "y": ["w"]}
    world.feed(*(wrote(one, claim=change.claim) for one, change in zip((x, y), decided.claims, strict=True)))
    world.feed(ended(u), sched.node("b", 1, ready=False))
    assert world.starts(101) == {"y": ["a"]}
    assert world.state.victims == {}, "w goes on"


def test_what_a_claim_had_kept_that_starts_elsewhere_lets_another_start(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 3))
    first, *rest = [run(sched, name, "a", since=since) for name, since in (("u", 90), ("v", 90), ("w", 0))]
    x, y = sched.job("x", 2, priority=2), sched.job("y", priority=1)
    decided = world.feed(first, *rest, x, y).decide(100)
    assert claims(decided) == {"x": ["u", "v"], "y": ["w"]}
    world.feed(*(wrote(one, claim=change.claim) for one, change in zip((x, y), decided.claims, strict=True)))
    world.feed(ended(first), sched.node("b", 2))
    assert world.starts(101) == {"x": ["b"], "y": ["a"]}
    assert world.state.victims == {}


def test_a_claim_takes_nothing_elsewhere_of_a_limit_that_is_kept_for_a_job_ahead(sched: SimpleNamespace) -> None:
    top, _, lent = limited(sched, 6)
    own = preempting(sched.queue("own", guarantee=3, parent="top"))
    world = sched.World().feed(top, own, lent, sched.node("a", 4), sched.node("b", 4))
    v = run(sched, "v", "a", gpus=4, queue="own")
    x = sched.job("x", 2, queue="own", queued=399, priority=1)
    decided = world.feed(v, sched.job("aged", 4, queue="lent"), x).decide(400)
    assert claims(decided) == {"x": ["v"]}, "two GPUs are left, and kept"
    world.feed(wrote(x, claim=decided.claims[0].claim), sched.node("c", 4))
    assert world.starts(401) == {}
    assert world.feed(wrote(v, phase=Phase.SUCCEEDED, placement=())).starts(402).keys() == {"x", "aged"}


def test_a_claim_takes_nothing_of_its_node_that_is_kept_for_a_job_ahead(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.queue("other", budget=100), sched.node("a", 4))
    v = run(sched, "v", "a", gpus=2)
    x = sched.job("x", queued=399, priority=1)
    world.feed(v, run(sched, "u", "a", preemptible=False), sched.job("aged", 2, queue="other"), x)
    decided = world.decide(400)
    assert claims(decided) == {"x": ["v"]}, "one GPU is left, and kept"
    world.feed(wrote(x, claim=decided.claims[0].claim), sched.node("a", 4, cpu=65))
    assert world.starts(401) == {}
    assert world.feed(ended(v)).starts(402).keys() == {"x", "aged"}


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.SUCCEEDED, Phase.SUSPENDED, None], ids=str)
def test_a_claim_waits_for_its_own_victims_alone_however_they_end(phase: Phase | None, sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 2))
    running, waiting = [run(sched, name, "a") for name in "uv"], [sched.job(name, priority=1) for name in "xy"]
    decided = world.feed(*running, *waiting).decide(100)
    assert claims(decided) == {"x": ["u"], "y": ["v"]}
    world.feed(*(wrote(one, claim=change.claim) for one, change in zip(waiting, decided.claims, strict=True)))
    if phase is None:
        world.state.forget_job(running[1].key)
    else:
        world.feed(wrote(running[1], phase=phase, placement=()))
    assert world.starts(101) == {"y": ["a"]}


def _end(sched: SimpleNamespace, at: float) -> Any:
    return AttemptEnd(number=1, ended_at=sched.at(at), intent=Intent.PREEMPT)


def test_room_that_others_take_voids_the_claim_and_it_is_planned_anew(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    _, v = world.running
    world.feed(sched.node("b", 2), *(run(sched, name, "b", priority=p) for name, p in (("w", 0), ("hi", 5))))
    assert claims(world.decide(101)) == {}
    world.feed(wrote(v, phase=Phase.QUEUED, placement=()), sched.other("them/pod", "a", 1))
    decided = world.decide(102)
    assert claims(decided) == {"x": None} and decided.claims[0].voided
    world.feed(wrote(run(sched, "hi", "b", priority=5), phase=Phase.SUCCEEDED, placement=()))
    (change,) = world.decide(103).claims
    assert change.claim is not None and [one.name for one in change.claim.victims] == ["w"]


def test_a_claim_voided_and_planned_at_once_counts(sched: SimpleNamespace) -> None:
    world = preempted(sched)
    world.feed(sched.node("b", 2, cpu=2), run(sched, "w", "b", gpus=2))
    world.decide(101)
    world.feed(sched.other("them/pod", "a", 1))
    (change,) = world.decide(102).claims
    assert isinstance(change.claim, Claim) and change.claim.replans == 1
    world.feed(wrote(world.x, 3, claim=change.claim))
    assert "planned anew 1x" in world.reasons(102)[sched.key("x")][0].message
