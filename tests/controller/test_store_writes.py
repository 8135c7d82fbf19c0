"""The operator's writes that are refused, unanswered, late or met by another's: they concern their own job alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from stoker.sched.decide import ClaimChange, Start
from stoker.sched.occupancy import queue_usage
from stoker.spec.job import JOBS, Claim, Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.meta import Key
from stoker.spec.pod import PODS, Pod
from stoker.spec.reasons import Code
from stoker.store.cache import WatchCache
from stoker.store.port import Conflict, Forbidden, Invalid, NotPermitted, StoreError, Unavailable

if TYPE_CHECKING:
    from .conftest import World


def held_back(
    monkeypatch: pytest.MonkeyPatch, cache: WatchCache[Any], first: Callable[[Any], bool]
) -> list[Callable[[], None]]:
    """What the watch brings from the object on that is `first`: the cache learns it when the test calls it."""
    held: list[Callable[[], None]] = []
    apply, advance = cache._apply, cache._advance

    def late_apply(old: Any, new: Any) -> None:
        if held or (new is not None and first(new)):
            held.append(partial(apply, old, new))
        else:
            apply(old, new)

    def late_advance(version: str) -> None:
        if held:
            held.append(partial(advance, version))
        else:
            advance(version)

    monkeypatch.setattr(cache, "_apply", late_apply)
    monkeypatch.setattr(cache, "_advance", late_advance)
    return held


@pytest.mark.parametrize("call", ["update", "delete"])
async def test_a_pod_is_released_and_stopped_once_however_late_its_watch_is(
    call: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the operator wrote itself is no news to wait for: another look before would write it again, in vain."""
    is_late, tried, done = True, 0, 0
    write = getattr(world.store, call)

    def shows_it(pod: Pod) -> bool:
        if call == "delete":
            return is_late and pod.metadata.deletion_timestamp is not None
        return is_late and pod.ended and not pod.metadata.finalizers

    async def counted(kind: Any, obj: Any, **options: Any) -> Any:
        nonlocal tried, done
        tried += kind is PODS
        written = await write(kind, obj, **options)
        done += kind is PODS
        return written

    held = held_back(monkeypatch, world.pods, shows_it)
    monkeypatch.setattr(world.store, call, counted)
    await world.node(gpus=1)
    if call == "delete":
        world.kubelet.script = lambda _pod: None
    await world.submit("a")
    if call == "delete":
        await world.phase("a", Phase.RUNNING)
        await world.change("a", cancel=True)
    await world.until(lambda: held and done, "its write")
    await world.change("a", priority=1)
    await world.submit("b", queue="none")
    await world.until(lambda: world.job("b").status.reason is Code.QUEUE_MISSING, "a look at a job that came later")
    assert tried == 1
    is_late = False
    while held:
        held.pop(0)()
    await world.until(lambda: not any(pod.metadata.finalizers for pod in world.pods.values()), "its release")


async def test_a_deletion_that_meets_a_conflict_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    delete, refused = world.store.delete, []

    async def refusing(kind: Any, key: Key, **how: Any) -> None:
        if key not in refused:
            refused.append(key)
            raise Conflict(f"{key} was changed at the same time")
        await delete(kind, key, **how)

    monkeypatch.setattr(world.store, "delete", refusing)
    await world.node(gpus=1)
    await world.submit("a", ttl_after_finished="100ms")
    await world.until(lambda: refused and not len(world.jobs) and not len(world.pods), "the job gone")


@pytest.mark.parametrize("error", [Invalid(["status.placement: Too many"]), Forbidden("denied by the policy p")])
@pytest.mark.parametrize("gpus", [1, 9])
async def test_a_status_that_the_store_refuses_stops_only_its_own_job(
    world: World, monkeypatch: pytest.MonkeyPatch, gpus: int, error: StoreError
) -> None:
    """Of a start (1 GPU) and of a reason to wait (9): no pass starts over, and the job's GPUs go to the next."""
    patch_status, refused = world.store.patch_status, 0

    async def refuse(kind: Any, key: Key, *args: Any, **options: Any) -> Any:
        nonlocal refused
        if key.name == "sick":
            refused += 1
            raise error
        return await patch_status(kind, key, *args, **options)

    monkeypatch.setattr(world.store, "patch_status", refuse)
    await world.node(gpus=1)
    await world.submit("sick", gpus_per_worker=gpus)
    for number in range(3):
        await world.submit(f"j{number}", gpus_per_worker=1)
        await world.phase(f"j{number}", Phase.SUCCEEDED)
    assert 0 < refused <= 5, "its reason to wait, where the node came into sight after it, and its start, less and less"
    assert world.operator.reconcile_errors == 0
    monkeypatch.setattr(world.store, "patch_status", patch_status)
    await world.node(gpus=9, name="n2")
    await world.phase("sick", Phase.SUCCEEDED)


async def test_a_start_without_an_answer_keeps_its_room_and_delays_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_status, failed = world.store.patch_status, asyncio.Event()

    async def fail(kind: Any, key: Key, *args: Any, **options: Any) -> Any:
        if key.name == "sick":
            failed.set()
            raise Unavailable('failed calling webhook "w"')
        return await patch_status(kind, key, *args, **options)

    monkeypatch.setattr(world.store, "patch_status", fail)
    await world.node(gpus=2)
    await world.submit("sick", gpus_per_worker=1)
    await failed.wait()
    await world.submit("both", gpus_per_worker=2)
    for number in range(3):
        await world.submit(f"j{number}", gpus_per_worker=1)
        await world.phase(f"j{number}", Phase.SUCCEEDED)
    assert world.job("both").status.phase is Phase.QUEUED and world.operator.reconcile_errors == 0
    monkeypatch.setattr(world.store, "patch_status", patch_status)
    for name in ("sick", "both"):
        await world.phase(name, Phase.SUCCEEDED)


async def test_a_job_that_is_deleted_as_its_status_is_written_is_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_status, gone = world.store.patch_status, asyncio.Event()

    async def late(kind: Any, key: Key, *args: Any, **options: Any) -> Any:
        if kind is JOBS:
            await world.store.delete(JOBS, key)
            gone.set()
        return await patch_status(kind, key, *args, **options)

    monkeypatch.setattr(world.store, "patch_status", late)
    await world.submit("j", suspend=True)
    await gone.wait()
    await world.until(lambda: not world.jobs and not world.operator.queue_depth, "seen to")
    assert world.operator.reconcile_errors == 0


async def test_a_starting_api_server_that_refuses_our_account_costs_no_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, refused = world.store.create, 0

    async def refuse(kind: Any, obj: Any) -> Any:
        nonlocal refused
        if kind is PODS and refused < 2:
            refused += 1
            raise NotPermitted("pods is forbidden")
        return await create(kind, obj)

    monkeypatch.setattr(world.store, "create", refuse)
    await world.node(gpus=1)
    await world.submit("j", gpus_per_worker=1)
    job = await world.phase("j", Phase.SUCCEEDED)
    assert (job.status.attempt, refused) == (1, 2)


async def test_what_comes_while_a_start_is_written_starts_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_status, answer = world.store.patch_status, asyncio.Event()

    async def slow(kind: Any, key: Key, *args: Any, **options: Any) -> Any:
        if kind is JOBS and key.name == "first":
            await answer.wait()
        return await patch_status(kind, key, *args, **options)

    monkeypatch.setattr(world.store, "patch_status", slow)
    await world.node(gpus=2)
    await world.submit("first", gpus_per_worker=1)
    await world.until(lambda: queue_usage(world.operator.feed.state, "default").gpus, "its start to be decided")
    await world.submit("second", gpus_per_worker=1)
    await world.phase("second", Phase.SUCCEEDED)
    assert world.job("first").status.placement == ()
    await world.submit("wide", gpus_per_worker=2, priority=1)
    await world.until(lambda: world.job("wide").status.message, "its reason")
    answer.set()
    await world.phase("first", Phase.SUCCEEDED)
    await world.phase("wide", Phase.SUCCEEDED)


async def test_a_start_whose_answer_was_lost_is_not_written_again_nor_its_room_given_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat of a write that was done meets a conflict. What became of it comes by the watch, however late."""
    patch_status = world.store.patch_status
    held = held_back(monkeypatch, world.jobs, lambda job: bool(job.status.placement))
    tried: list[str] = []

    async def lost(kind: Any, key: Key, patch: Any, **options: Any) -> Any:
        if kind is not JOBS or not patch.get("placement"):
            return await patch_status(kind, key, patch, **options)
        tried.append(key.name)
        await patch_status(kind, key, patch, **options)
        raise Conflict("the object has been modified")

    await world.node(gpus=1)
    monkeypatch.setattr(world.store, "patch_status", lost)
    await world.submit("a", gpus_per_worker=1)
    await world.until(lambda: held and tried, "its start")
    passes = world.operator.scheduling.passes
    for number in range(3):
        await world.node(gpus=0, name=f"other-{number}")
        await world.until(lambda: world.operator.scheduling.passes > passes, "a pass")  # noqa: B023
        passes = world.operator.scheduling.passes
    assert tried == ["a"]
    monkeypatch.undo()
    while held:
        held.pop(0)()
    await world.phase("a", Phase.SUCCEEDED)


async def test_what_was_decided_is_written_onto_that_version_of_the_job_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner, or another leader, may have changed it since: that is in the cache by now, or in the store alone."""
    loop, at = world.operator.scheduling, (Placed(worker=0, node="n1"),)
    claim = Claim(placement=at, victims=(), since=datetime.now(UTC))

    async def write(decided_on: TrainingJob) -> TrainingJobStatus:
        key, uid, version = decided_on.key, decided_on.uid, decided_on.metadata.resource_version
        await loop._start(Start(key, uid, version, at, ""))
        await loop._write_claim(ClaimChange(key, uid, version, claim, False))
        return (await world.store.get(JOBS, key)).status

    first = await world.submit("a", gpus_per_worker=9)
    await world.until(lambda: world.job("a").status.message, "its reason")
    status = await write(first)
    assert (status.placement, status.claim) == ((), None)
    seen = world.job("a")
    monkeypatch.setattr(world.jobs, "get", lambda _: seen)
    await world.change("a", priority=1)
    status = await write(seen)
    assert (status.placement, status.claim) == ((), None)
