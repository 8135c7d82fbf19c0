"""A worker's life as the agent leads it: lease, folder, spawn, stop, burial, and its pod's status.

Owns the workers, the leases and the hold on each supervisor. `step` brings one worker one step on, from what is there:
the pod, the folder, the supervisor. Never decides where or when something runs. Called by `agent.NodeAgent` only.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TypeVar

from stoker.local.project_secrets import LocalSecrets, SecretMissing
from stoker.spec.data import FETCH_VARIABLE
from stoker.spec.node import Gpu
from stoker.spec.pod import PODS, Pod, PodPhase
from stoker.spec.project_secrets import CONFIG_ERROR
from stoker.spec.report_tokens import worker_token
from stoker.spec.worker import LOG_FILE, LaunchMode, ReportTarget
from stoker.store.clock import Clock
from stoker.store.port import Conflict, NotFound, Store
from stoker.store.seam import Seam
from stoker.store.workqueue import WorkQueue

from . import spawning, status
from .data_fetch import DataFetches
from .folders import FoundWorker, Places, WorkerFolder
from .launching import BadPod, Order, compose_launch, lease_of, parse_pod
from .leases import CannotLease, HeldByOthers, LeaseTable, leasable_ports, port_is_free
from .leftovers import Leftovers
from .memory_groups import MemoryGroups
from .spawning import RanAlready, start
from .worker import Stage, Worker

T = TypeVar("T")

logger = logging.getLogger(__name__)

KILL_AFTER_GRACE_S = 10.0
"""What a supervisor gets beyond the grace it enforces itself."""
LOOK_AGAIN_S = 0.05
_SHORTAGES = (errno.EMFILE, errno.ENFILE)
TRIES = 5
"""Spawns of a worker that never came to its start, before its pod is refused."""
STEPS_AT_ONCE = 2  # more of them only keep the api waiting, which lives on the same loop (tools/verify/thousand.py)
MANAGER = "agent"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every worker here has in common."""

    datadir: Places
    secrets: LocalSecrets
    program: str
    """The supervisor, as it is started."""
    host_env: Mapping[str, str]
    pass_env: Collection[str]
    """Names in `host_env` that workers get besides those they always do."""
    report_url: Callable[[], str]
    report_key: bytes
    log_bytes: int
    memory_groups: MemoryGroups
    gpus_as_known: Callable[[tuple[Gpu, ...]], tuple[Gpu, ...]] = lambda gpus: gpus
    """As of a LeaseTable."""

    def report_target(self, pod_uid: str) -> ReportTarget | None:
        url = self.report_url()
        return ReportTarget(url=url, token=worker_token(self.report_key, pod_uid)) if url else None

    def folder(self, pod_uid: str) -> WorkerFolder:
        return WorkerFolder(self.datadir.workers, pod_uid)


class Lives:
    """`queue` is where a worker's uid is put when there is a next step to take."""

    def __init__(
        self,
        store: Store,
        queue: WorkQueue[str],
        around: Surroundings,
        *,
        clock: Clock,
        seam: Seam,
        threads: Executor,
    ) -> None:
        self._store = store
        self._queue = queue
        self._around = around
        self._clock = clock
        self._seam = seam
        self._threads = threads
        self._leftovers = Leftovers(clock, seam, threads)
        self._tries: dict[str, int] = {}
        self._waiting: dict[str, None] = {}
        """Pods for which a release may make room, first come first."""
        self._gate = asyncio.Semaphore(STEPS_AT_ONCE)
        self._fetches = DataFetches(around.datadir.data, around.host_env, seam, queue.add)
        self.leases = LeaseTable(leasable_ports(), port_is_free, around.gpus_as_known)
        self.workers: dict[str, Worker] = {}
        self.ended: dict[str, str] = {}
        """Folders that only wait for their removal: pod uid -> job uid ('' unknown)."""

    def find_again(self, found: FoundWorker, pod: Pod | None) -> None:
        """Take over what an earlier agent left."""
        launch = found.launch
        job_uid = launch.job_uid if launch else ""
        ran = found.held or found.started is not None or found.ended
        if not ran:  # if its pod is still there it is started anew, with a new lease
            if pod is None:
                self.ended[found.pod_uid] = job_uid
            return
        if found.ended and not found.held and (pod is None or pod.ended):
            self.ended[found.pod_uid] = job_uid
            return
        grace_s = launch.grace_s if launch else 0.0
        stage = Stage.STARTING if found.held else Stage.DOWN
        self.workers[found.pod_uid] = Worker(found.pod_uid, job_uid, grace_s, stage)
        if launch is not None:
            try:
                self.leases.adopt(found.pod_uid, (launch.job_uid, launch.attempt), lease_of(launch))
            except CannotLease:
                logger.exception("worker %s holds what another worker holds", found.pod_uid)
            report = self._around.report_target(found.pod_uid)
            if found.held and launch.report != report:
                # The api has moved; the supervisor looks here when a report fails.
                moved = launch.model_copy(update={"report": report})
                self._around.folder(found.pod_uid).replace_launch(moved)
        self._queue.add(found.pod_uid)

    def folder(self, pod_uid: str) -> WorkerFolder:
        return self._around.folder(pod_uid)

    def let_go(self) -> None:
        """Close what was opened; the workers go on."""
        self._fetches.close()
        for worker in self.workers.values():
            self._unfollow(worker)

    async def step(self, pod_uid: str, pod: Pod | None) -> None:
        """Bring one worker a step on; `pod` is None when it is no more. Raises: StoreError, OSError: try again."""
        async with self._gate:
            down = await self._advance(pod_uid, pod)
        if down is None:
            return
        if down.stage is not Stage.BURIED:
            await self._leftovers.gone(pod_uid)  # outside the gate: what will not die holds up no other worker
            await self._in_thread(self._remove_memory_group, pod_uid)
            self._release(pod_uid)
            down.stage = Stage.BURIED
        async with self._gate:
            await self._write_end(down, pod)

    async def _advance(self, pod_uid: str, pod: Pod | None) -> Worker | None:
        """The worker, if it is down for good and its end is still to be written."""
        worker = self.workers.get(pod_uid)
        if worker is None:
            if pod is None or pod.ended:
                self._fetches.drop(pod_uid)
            if pod is None:
                folder = self._around.folder(pod_uid)
                if pod_uid not in self.ended and folder.path.exists():  # prepared, never run
                    launch = await self._in_thread(folder.read_launch)
                    self.ended[pod_uid] = launch.job_uid if launch is not None else ""
            elif not pod.ended:
                await self._admit(pod)
            return None
        if worker.handle is None and worker.alive:
            await self._look(worker)
        if worker.alive:
            if pod is None or pod.ended or pod.metadata.deletion_timestamp is not None:
                self._stop(worker, pod)
            elif worker.stage is Stage.RUNNING and not worker.running_written:
                if pod.status.phase is PodPhase.PENDING and worker.started_at is not None:
                    await self._write_status(pod, status.running(worker.started_at))
                worker.running_written = True
            return None
        return worker if await self._is_over(worker, pod) else None

    # Beginning.

    async def _admit(self, pod: Pod) -> None:
        """Lease and start what the pod asks for, or say why not."""
        if pod.metadata.deletion_timestamp is not None:
            self._fetches.drop(pod.uid)
            await self._write_status(pod, status.never_started())
            return
        if pod.status.phase is not PodPhase.PENDING:  # it ran, and its folder is gone
            await self._write_status(pod, status.lost(None, self._clock.now()))
            return
        try:
            order = parse_pod(pod)
            secrets = await self._in_thread(self._secrets, order)
            places = await self._fetched(pod, order, secrets)
            if places is None:
                return
            peers = order.workers if order.mode is LaunchMode.ONCE else 1
            lease = self.leases.take(pod.uid, order.gang, order.wish, peers)
        except SecretMissing as missing:  # as a kubelet waits: its operator withdraws the gang
            await self._write_status(pod, status.waiting(CONFIG_ERROR, str(missing)))
            return
        except HeldByOthers as shortage:
            # The scheduler has seen another worker's end before us, or not yet a pod whose job is gone: no fault of
            # this job's, which its operator withdraws should it take too long.
            logger.info("worker %s waits: it %s", pod.uid, shortage)
            self._waiting[pod.uid] = None
            return
        except (BadPod, CannotLease) as refusal:
            await self._write_status(pod, status.rejected(str(refusal)))
            return
        folder, job_folder = self._around.folder(pod.uid), self._around.datadir.jobs / order.job_uid
        launch = compose_launch(
            order,
            lease,
            folder=folder.path,
            job_folder=job_folder,
            report=self._around.report_target(pod.uid),
            log_bytes=self._around.log_bytes,
            host_env=self._around.host_env,
            pass_env=self._around.pass_env,
            places=places,
            environments=self._around.datadir.environments,
            memory_group=await self._in_thread(self._memory_group, order),
        )
        self._fetches.drop(pod.uid)
        worker = Worker(pod.uid, order.job_uid, order.grace_s, Stage.STARTING)
        self.workers[pod.uid] = worker
        try:
            worker.handle = await self._in_thread(
                start, folder, launch, job_folder, self._around.program, self._around.host_env, self._seam, secrets
            )
        except RanAlready:
            worker.stage = Stage.DOWN
            self._queue.add(pod.uid)
        except OSError as error:
            if error.errno in _SHORTAGES:  # ours, and no try of the worker's
                del self.workers[pod.uid]
                self._release(pod.uid)
                raise
            await self._not_started(worker, pod, str(error))
        else:
            self._follow(worker)

    async def _fetched(self, pod: Pod, order: Order, secrets: Mapping[str, str]) -> Mapping[str, str] | None:
        """Where its fetched data is, by name; None: it is not there yet, or never will be, and its pod says so."""
        if FETCH_VARIABLE not in order.env:
            return {}
        fetch = self._fetches.get(pod.uid, order.env[FETCH_VARIABLE], {**order.env, **secrets})
        if not fetch.done:
            if not pod.status.init_container_statuses:
                await self._write_status(pod, status.fetching(self._clock.now()))
            return None
        if fetch.error:
            await self._write_status(pod, status.not_fetched(fetch.error, self._clock.now()))
            self._fetches.drop(pod.uid)
            return None
        return fetch.places

    def _memory_group(self, order: Order) -> str:
        return self._around.memory_groups.make(order.pod_uid, order.memory_bytes) if order.memory_bytes else ""

    def _secrets(self, order: Order) -> dict[str, str]:
        """Raises: SecretMissing, StoreError, OSError."""
        return {name: self._around.secrets.value(ref, order.project) for name, ref in order.secrets.items()}

    def _release(self, pod_uid: str) -> None:
        self.leases.release(pod_uid)
        for waiting in self._waiting:
            self._queue.add(waiting)
        self._waiting.clear()

    def _follow(self, worker: Worker) -> None:
        """Hear of its start and its end."""
        handle = worker.handle
        if handle is None:  # it lives, but who it is stands only in started.json
            self._queue.add_after(worker.pod_uid, LOOK_AGAIN_S)
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(handle.pidfd, self._on_down, worker)
        if handle.ready_fd is not None:
            loop.add_reader(handle.ready_fd, self._on_ready, worker)

    def _on_ready(self, worker: Worker) -> None:
        handle = worker.handle
        assert handle is not None and handle.ready_fd is not None
        asyncio.get_running_loop().remove_reader(handle.ready_fd)
        if os.read(handle.ready_fd, 1) == b"S":
            worker.stage = Stage.RUNNING
            worker.started_at = self._clock.now().timestamp()
            self._queue.add(worker.pod_uid)
        os.close(handle.ready_fd)
        worker.handle = replace(handle, ready_fd=None)

    async def _not_started(self, worker: Worker, pod: Pod | None, why: str) -> None:
        """Nothing of it ran: it may be tried again."""
        del self.workers[worker.pod_uid]
        self._release(worker.pod_uid)
        tries = self._tries[worker.pod_uid] = self._tries.get(worker.pod_uid, 0) + 1
        if pod is None or pod.ended:
            self._forget(worker)
        elif pod.metadata.deletion_timestamp is not None:
            await self._write_status(pod, status.never_started())
        elif tries >= TRIES:
            await self._write_status(
                pod, status.rejected(f"the worker could not be started, tried {tries} times: {why}")
            )
        else:
            logger.warning("worker %s was not started: %s", worker.pod_uid, why)
            self._queue.add_after(worker.pod_uid, LOOK_AGAIN_S * 2**tries)

    # Ending.

    def _stop(self, worker: Worker, pod: Pod | None) -> None:
        """One SIGTERM; the supervisor keeps the grace. Past it and some, SIGKILL."""
        handle = worker.handle
        if handle is None:
            self._queue.add_after(worker.pod_uid, LOOK_AGAIN_S)
            return
        now = self._clock.monotonic()
        if not worker.stop_sent:
            with self._seam.crossing("agent.stop", worker.pod_uid):
                spawning.send(handle, signal.SIGTERM)
            worker.stop_sent = True
            asked_s = pod.metadata.deletion_grace_period_seconds if pod is not None else None
            grace_s = worker.grace_s if asked_s is None else min(worker.grace_s, asked_s)
            worker.kill_at = now + grace_s + KILL_AFTER_GRACE_S
        elif worker.kill_at is not None and now >= worker.kill_at:
            with self._seam.crossing("agent.kill", worker.pod_uid):
                spawning.send(handle, signal.SIGKILL)
            worker.kill_at = now + KILL_AFTER_GRACE_S
        if worker.kill_at is not None:
            self._queue.add_after(worker.pod_uid, worker.kill_at - now)

    def _on_down(self, worker: Worker) -> None:
        """The supervisor has ended."""
        self._unfollow(worker)
        worker.stage = Stage.DOWN
        self._queue.add(worker.pod_uid)

    async def _look(self, worker: Worker) -> None:
        """Learn from the folder how a worker stands whose supervisor we did not start."""
        found = await self._in_thread(self._around.folder(worker.pod_uid).look)
        if not found.held:
            worker.stage = Stage.DOWN
            return
        if found.started is not None:
            worker.stage, worker.started_at = Stage.RUNNING, found.started.at
            worker.handle = spawning.hold(found.started)
        self._follow(worker)

    async def _is_over(self, worker: Worker, pod: Pod | None) -> bool:
        """Whether a worker whose supervisor is gone had begun, and so has an end."""
        if worker.stage is Stage.BURIED:
            return True
        folder = self._around.folder(worker.pod_uid)
        found = await self._in_thread(folder.look)
        if found.held:  # its last thread is on its way out
            self._queue.add_after(worker.pod_uid, LOOK_AGAIN_S)
            return False
        if found.started is None and not found.ended:
            await self._not_started(worker, pod, await self._in_thread(_last_log_line, folder))
            return False
        return True

    async def _write_end(self, worker: Worker, pod: Pod | None) -> None:
        """Write how the worker ended into the pod's status; by now nothing of it is left and its leases are free."""
        if pod is None or pod.ended:
            self._forget(worker)
            return
        folder = self._around.folder(worker.pod_uid)
        record = await self._in_thread(folder.read_exit)
        if record is not None:
            await self._write_status(pod, status.ended(record))
        else:
            for line in await self._in_thread(folder.keep_files):
                logger.warning("worker %s: %s", worker.pod_uid, line)
            found = await self._in_thread(folder.look)
            await self._write_status(pod, status.lost(found.started.at if found.started else None, self._clock.now()))

    def _remove_memory_group(self, pod_uid: str) -> None:
        launch = self._around.folder(pod_uid).read_launch()
        if launch is not None and launch.memory_group:
            self._around.memory_groups.remove(launch.memory_group)

    def _forget(self, worker: Worker) -> None:
        self.workers.pop(worker.pod_uid, None)
        self._tries.pop(worker.pod_uid, None)
        self.ended[worker.pod_uid] = worker.job_uid

    async def _write_status(self, pod: Pod, patch: status.Patch) -> None:
        """Raises: StoreError other than that the pod is no more."""
        try:
            await self._store.patch_status(PODS, pod.key, patch, manager=MANAGER, uid=pod.uid)
        except (NotFound, Conflict):
            pass  # its watch will say so too

    def _unfollow(self, worker: Worker) -> None:
        handle, worker.handle = worker.handle, None
        if handle is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(handle.pidfd)
        if handle.ready_fd is not None:
            loop.remove_reader(handle.ready_fd)
        spawning.bury(handle)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _last_log_line(folder: WorkerFolder) -> str:
    """The last line in the log of a supervisor that ended before it started its worker."""
    try:
        lines = (folder.path / LOG_FILE).read_bytes()[-2000:].decode(errors="replace").split("\n")
    except OSError:
        lines = []
    return next((line for line in reversed(lines) if line.strip()), "its supervisor ended at once and logged nothing")
