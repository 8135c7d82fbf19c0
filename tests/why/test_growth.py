"""What `stoker why` says of elastic jobs: what one waits for that could have more workers, and how one is resized."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.spec.job import AttemptEnd, Phase
from stoker.spec.outcome import Intent
from stoker.why.explain import explain
from tests.support.preempting import preempting, run, wrote


def runs(sched: SimpleNamespace, *on: str, saved: float = 600, most: int = 4, **status: Any) -> Any:
    return wrote(run(sched, "e", *on, saved=saved, elastic=(1, most)), 2, **status)


def resized(sched: SimpleNamespace, at: float) -> dict[str, Any]:
    return {"attempts": (AttemptEnd(number=1, started_at=sched.at(0), ended_at=sched.at(at), intent=Intent.RESIZE),)}


CASES: list[tuple[str, Any, str, float | None]] = [
    # (case, the world but for node a of 4 GPUs, what is said, until)
    ("it has all that it may have", lambda s: [runs(s, "a", most=1)], "", None),
    ("no room", lambda s: [runs(s, *"aaa"), s.job("u", on=["a"])], "once there is idle room that no waiting job", None),
    ("a job waits", lambda s: [runs(s, "a"), s.job("w", 4)], "once there is idle room that no waiting job could", None),
    ("another waits for the limit", lambda s: [s.queue(gpus=3), runs(s, *"aa"), s.job("w", 2)],
     "once no other job waits for room within its queue's limit", None),
    ("resized not long ago", lambda s: [runs(s, "a", **resized(s, 100))], "not before 10:11:40 UTC", 700),
    ("little to gain", lambda s: [runs(s, *"aaa", saved=0)], "more fit, but restarting now would cost more", None),
    ("more to gain later", lambda s: [runs(s, "a", saved=0, placed_at=s.at(-700))], "at 2026-11-21 10:23:21 UTC", 1401),
    ("its turn is next", lambda s: [runs(s, "a")], "its turn to go on with 4 is next", None),
]  # fmt: skip


@pytest.mark.parametrize(("world", "says", "until"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_it_waits_for_to_grow(sched: SimpleNamespace, world: Any, says: str, until: float | None) -> None:
    fed = sched.World().feed(sched.queue(), sched.node("a", 4), *world(sched))
    with fed.state.what_if():
        grows = any(one.key.name == "e" for one in fed.decide(600).claims)
    assert grows == ("is next" in says)
    if "turn" not in says:
        fed.decide(600)
    hints = explain(fed.state, sched.key("e"), sched.at(600)).hints
    assert [str(one.code) for one in hints] == (["Grows"] if says else [])
    assert all(says in one.message for one in hints), hints
    assert [one.until for one in hints] == ([None if until is None else sched.at(until)] if says else [])


def test_a_preemptor_says_with_how_many_workers_its_victim_goes_on(sched: SimpleNamespace) -> None:
    world = sched.World().feed(preempting(sched.queue()), sched.node("a", 4), runs(sched, *"aaaa"))
    x = sched.job("x", 3, priority=1)
    (change,) = world.feed(x).decide(600).claims
    said = explain(world.state, x.key, sched.at(601))
    assert said.summary.startswith("preempts job e (goes on with 1): starts on node a"), said.summary
    over = wrote(runs(sched, *"aaaa"), 3, phase=Phase.QUEUED, placement=(), claim=change.claim.model_copy(
        update={"victims": (), "placement": change.claim.victims[0].keeps}))  # fmt: skip
    said = explain(world.feed(over).state, sched.key("e"), sched.at(602))
    assert said.summary == "can start now, on a; its turn is next"


def test_one_that_waits_asks_for_its_least_and_a_smaller_least_is_suggested(sched: SimpleNamespace) -> None:
    world = sched.World().feed(sched.queue(), sched.node("a", 4), sched.job("u", 2, on=["a"]))
    world.feed(sched.job("e", workers=6, elastic=(3, 8)))
    said = explain(world.state, sched.key("e"), sched.at(10))
    assert said.summary.startswith("short 1 of 3 GPUs"), said.summary
    assert "with elastic.min: 2 instead of 3 it would start now" in [one.message for one in said.hints]
