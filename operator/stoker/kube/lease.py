"""Leader election on a coordination.k8s.io/v1 Lease: one operator works, and stops before another may start.

Owns the lease's protocol, the moment from which this process may no longer write, and the work's life. Never knows what
the work is. Picked by `controller/main.py`:

    election = LeaderElection(client, clock, namespace="stoker", identity=pod_name)
    store = KubeStore(client, clock, fence=election.check)
    await election.run(operator.run)

Two clocks keep it safe. An observer takes the lease only after it has seen it unchanged for `lease_s` of its own boot
clock (which runs on while the machine sleeps): no wall clock is trusted. The leader counts from the moment it
*sent* its last good renewal, and gives up `margin_s` before `lease_s` is over: work is cancelled, and `check`, the
fence of every write, refuses from there on, also in a process that was frozen and woke up later.

Source: client-go tools/leaderelection (the fields and their meaning); that one cancels work without a deadline.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stoker.store.clock import Clock
from stoker.store.port import Conflict, NotLeader, StoreError

from .client import KubeClient
from .lease_object import Lease, LeaseObject, micro_time

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Units: seconds. `renew_s` < `lease_s` - `margin_s` by far, or one lost answer costs the leadership."""

    lease_s: float = 15.0
    """How long others wait after the last renewal they saw."""
    margin_s: float = 5.0
    """How long before that the leader stops: for the work to end, and for the clocks' different speeds."""
    renew_s: float = 2.0
    retry_s: float = 2.0
    """How often one that does not lead looks."""
    stop_s: float = 3.0
    """How long cancelled work is waited for; after that the process should end."""


class StillWorking(Exception):
    """Cancelled work has not stopped in time. The fence lets no write of it pass; only the process' end ends it."""


class LeaderElection:
    """One candidate. `run` is the whole of it; `check` and `is_leader` may be asked from anywhere."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        namespace: str,
        identity: str,
        name: str = "stoker-operator",
        timing: Timing | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`identity`: different for every process that ever runs: a pod's name and a random part."""
        self._clock, self._timing = clock, timing or Timing()
        self._object = LeaseObject(client, namespace, name, timeout_s=max(1.0, self._timing.renew_s))
        self._rng = rng or random.Random()
        self.identity = identity
        self.deadline = float("-inf")
        """On the clock's monotonic hand: until then this process leads."""
        self.transitions = 0
        """Of the lease when this process last led: grows with each change of leader."""
        self._seen: tuple[str, ...] = ()
        self._seen_at = float("-inf")
        self._lease: Lease | None = None

    @property
    def is_leader(self) -> bool:
        return self._clock.monotonic() < self.deadline

    def check(self) -> None:
        """The fence. Raises: NotLeader when this process does not lead (any more)."""
        if not self.is_leader:
            raise NotLeader(f"{self.identity} does not lead: not written")

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the leadership, work while it lasts, and wait again; until cancelled, or `work` has ended by itself.

        What `work` raises is raised here. The lease is released after `work` has stopped, unless another holds it.
        Raises: StillWorking: end the process then.
        """
        while True:
            await self._acquire()
            logger.info("%s leads (transition %d)", self.identity, self.transitions)
            if await self._lead(work):
                return
            # Cancelled tasks leave their frames in rings, and all that the work had in memory. Nothing waits now.
            gc.collect()

    async def _acquire(self) -> None:
        while not await self._try():
            await self._clock.sleep(self._timing.retry_s * self._rng.uniform(0.8, 1.2))

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Returns: whether the work has ended by itself."""
        working: asyncio.Task[None] = asyncio.ensure_future(_as_coroutine(work))
        renewing = asyncio.create_task(self._renew_until_lost())
        expiring = asyncio.create_task(self._expire())
        try:
            await asyncio.wait({working, renewing, expiring}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            logger.warning("%s no longer leads: stopping its work", self.identity)
            return False
        finally:
            # Renewal goes on while the work stops, so that its last writes may still pass and no other operator starts.
            try:
                await self._stop(working)
            finally:
                await _cancel(renewing, expiring)
                await self._release()

    async def _stop(self, working: asyncio.Task[None]) -> None:
        working.cancel()
        done, _ = await asyncio.wait({working}, timeout=self._timing.stop_s)
        if not done:
            self.deadline = float("-inf")  # whatever it still tries to write is refused
            raise StillWorking(f"the work has not stopped within {self._timing.stop_s:g} s; it can write nothing more")

    async def _renew_until_lost(self) -> None:
        """Ends when another holds the lease. A renewal that fails, for whatever reason, is tried again."""
        while True:
            await self._clock.sleep(self._timing.renew_s * self._rng.uniform(0.9, 1.1))
            if not await self._try() and self._holder() not in ("", self.identity):
                self.deadline = float("-inf")
                return

    async def _expire(self) -> None:
        while (left_s := self.deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)

    async def _try(self) -> bool:
        """Acquire or renew once. Returns: whether this process leads from now on (or still)."""
        sent_at = self._clock.monotonic()
        try:
            if self._lease is None or not (self._holder() == self.identity and self.is_leader):
                self._observe(await self._object.read())
            if not self._may_take():
                return False
            self._lease = await self._write()
        except Conflict:  # another was faster
            self._lease = None
            return False
        except StoreError as error:
            self._lease = None  # it may have been written all the same: read it before the next try
            logger.warning("%s can't %s its lease: %s", self.identity, "renew" if self.is_leader else "ask for", error)
            return False
        except Exception:
            # The loop's edge: any failure is a renewal that failed, and the deadline does the rest.
            self._lease = None
            logger.exception("%s failed to renew its lease", self.identity)
            return False
        self._observe(self._lease)
        self.transitions = self._lease.spec.lease_transitions or 0
        self.deadline = sent_at + self._timing.lease_s - self._timing.margin_s
        return True

    def _holder(self) -> str:
        return "" if self._lease is None else self._lease.spec.holder_identity or ""

    def _observe(self, lease: Lease | None) -> None:
        """Note, by one's own clock, when the lease was last seen to change."""
        self._lease = lease
        seen = () if lease is None else (lease.uid, lease.metadata.resource_version)
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock.monotonic()

    def _may_take(self) -> bool:
        holder = self._holder()
        if holder in ("", self.identity):
            return True
        assert self._lease is not None
        declared_s = self._lease.spec.lease_duration_seconds or 0
        return self._clock.monotonic() >= self._seen_at + max(self._timing.lease_s, declared_s)

    async def _write(self) -> Lease:
        """Take or renew it, as seen; a lease that has changed since is a Conflict."""
        now, old = micro_time(self._clock.now()), self._lease
        renewal = old is not None and old.spec.holder_identity == self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": round(self._timing.lease_s),
            "acquireTime": (old.spec.acquire_time if old is not None and renewal else None) or now,
            "renewTime": now,
            "leaseTransitions": 0 if old is None else (old.spec.lease_transitions or 0) + (0 if renewal else 1),
        }
        return await self._object.write(self._lease, spec)

    async def _release(self) -> None:
        """Release it, so that the next leader need not wait. From here on the fence lets no write pass."""
        led, self.deadline = self.is_leader, float("-inf")
        try:
            if led and not await self._give_up():
                self._lease = await self._object.read()  # a renewal that was cut off under way may have been done
                await self._give_up()
        except StoreError as error:
            logger.info("%s could not release its lease, the next waits for its end: %s", self.identity, error)
            self._lease = None

    async def _give_up(self) -> bool:
        """Returns: no more is to be done, as far as is known. Raises: StoreError."""
        if self._lease is None or self._holder() != self.identity:
            return self._lease is not None
        now = micro_time(self._clock.now())
        spec = {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": self._lease.spec.lease_transitions or 0,
        }
        try:
            self._lease = await self._object.write(self._lease, spec)
        except Conflict:
            return False
        return True


async def _as_coroutine(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
