"""Ten thousand short jobs of every kind, visitors, random faults; what grows, and whether every promise held.

    python -m tools.verify.soak --mode up|cluster [--jobs 10000] [--minutes 40] [--seed N]

up: a real `stoker up`, each job a process. cluster: operator and api on a real API server; pods are played by a
stand-in for kubelets. Jobs come evenly over the time, so that what is kept for minutes has a steady size; at most 48
are alive at once. Processes are killed in the beginning; slopes are of the end, under the faults that leave a process
alive. Exits 1 if a promise was broken or a slope is over its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx

from tests.support.harness import machine
from tests.support.testbed import build
from tools.verify.soak.clients import Clients
from tools.verify.soak.cluster import KubernetesCluster
from tools.verify.soak.meter import Meter
from tools.verify.soak.one_machine import OneMachine
from tools.verify.soak.plan import TTL_S, planned

ALIVE = 48
"""Jobs that have not ended, at most."""
VISITORS = 8
FAULT_EVERY_S = (12.0, 45.0)
SAMPLE_S = 3.0
DRAIN_S = 300.0
COMING = 0.95
"""Of the time: the rest is for those that came late."""
KILLS_UNTIL, STEADY_FROM = 0.15, 0.55
"""Between them all that a process keeps for a quarter of an hour, as rows of /metrics, comes to its size."""
LIMITS = {"RSS, MiB": 2.0, "descriptors": 1.0, "threads": 0.5}
"""The most that a process may grow per 1,000 jobs."""
FEWEST = 2000
"""Of fewer jobs a slope says nothing but how a process warms up."""
RETRIED = frozenset({"StartTimeout", "NodeLost"})
"""What ends an attempt and is not the job's own doing; Interrupted too, where a pod was deleted."""


class Soak:
    def __init__(self, place: OneMachine | KubernetesCluster, jobs: int, length_s: float, seed: int) -> None:
        self._place, self._jobs, self._length_s = place, jobs, length_s
        self._rng = random.Random(seed + 1)
        self._plan = enumerate(planned(seed, jobs, place.most_gpus))
        self._clients = Clients(place.url, place.token, place.pages, self._rng)
        self._meter, self._faults = Meter(), Counter[str]()
        self._began, self._steady, self._draining = time.monotonic(), 0, False

    async def run(self) -> list[str]:
        """All jobs, and until nothing of them is left. Returns: the promises that were broken."""
        await self._clients.prepare()
        others = [asyncio.create_task(self._clients.visit()) for _ in range(VISITORS)]
        others.append(asyncio.create_task(self._disturb()))
        always = [asyncio.create_task(work) for work in (self._clients.look(), self._measure())]
        lanes = [asyncio.create_task(self._lane()) for _ in range(ALIVE)]
        await asyncio.wait(lanes, timeout=self._length_s + DRAIN_S)
        took_s = time.monotonic() - self._began
        self._draining = True
        failed = await _ended(others + lanes)
        left = await self._left()
        failed += await _ended(always)
        lost = [name for name, job in self._clients.accepted.items() if job.ends and name not in self._clients.ends]
        broken = self._report(took_s) + failed + self._clients.broken + [f"left behind: {one}" for one in left]
        return broken + [f"{name}: lost, or its end was never seen" for name in lost] + self._wrong_ends()

    @property
    def _progress(self) -> float:
        return max(len(self._clients.accepted) / self._jobs, (time.monotonic() - self._began) / self._length_s)

    async def _lane(self) -> None:
        for number, job in self._plan:
            await asyncio.sleep(self._began + COMING * self._length_s * number / self._jobs - time.monotonic())
            if self._progress >= 1:
                return
            await self._clients.live(job, self._place.trainer(job))

    async def _disturb(self) -> None:
        """One fault after the other at random moments; each is over before the next."""
        while True:
            await asyncio.sleep(self._rng.uniform(*FAULT_EVERY_S))
            kills = self._progress < KILLS_UNTIL and self._rng.random() < 0.5
            self._faults[await asyncio.shield(self._place.disturb(kills=kills))] += 1

    async def _measure(self) -> None:
        printed = 0
        while True:
            accepted, ended = len(self._clients.accepted), len(self._clients.ends)
            if not self._steady and self._progress >= STEADY_FROM:
                self._steady = accepted
            self._meter.take(accepted + self._draining, self._place.processes(), self._place.sizes())
            if time.monotonic() - self._began > 60 * printed:
                printed += 1
                counts = f"{accepted} accepted, {ended} ended, broken {len(self._clients.broken)}"
                print(f"{time.monotonic() - self._began:.0f} s  {counts}, faults {self._faults.total()}", flush=True)
            await asyncio.sleep(SAMPLE_S)

    async def _left(self) -> list[str]:
        """What is left once each ended job has outlived its time."""
        deadline, left = time.monotonic() + TTL_S + DRAIN_S, ["no answer"]
        while left and time.monotonic() < deadline:
            await asyncio.sleep(2)
            with suppress(httpx.HTTPError):
                left = await self._clients.left() + await self._place.left()
        return left[:20]

    def _wrong_ends(self) -> list[str]:
        """Jobs that did not end as they must, and workers that were not run exactly once."""
        accepted, ran = self._clients.accepted, self._place.ran()
        broken = [f"{job}-{attempt}-{worker} was run {n} times" for (job, attempt, worker), n in ran.items() if n > 1]
        broken += [f"{name} was never accepted, but ran" for name in {job for job, _a, _w in ran} - accepted.keys()]
        for name in self._clients.ends.keys() & accepted.keys():
            job, end = accepted[name], self._clients.ends[name]
            last = end.get("attempt", 0)
            if end["phase"] != job.ends and job.ends:
                broken.append(f"{name} ({job.kind}) is {end['phase']}, not {job.ends}: {end.get('message')}")
            # Where the script was to fail in an attempt that something else ended, it did so less often.
            excused = RETRIED | {"Interrupted"} if name in self._place.disturbed else RETRIED
            again = sum(one.get("category") in excused for one in end.get("attempts", ()))
            if job.ends and not any(last - few in job.attempts for few in range(again + 1)):
                broken.append(f"{name} ({job.kind}) took {last} attempts: {end.get('attempts')}")
            due = range(job.spec["workers"]) if end["phase"] == "Succeeded" else ()
            if missing := [worker for worker in due if ran[name, last, worker] != 1]:
                broken.append(f"{name}: Succeeded, but workers {missing} of attempt {last} never ran")
        return broken

    def _report(self, took_s: float) -> list[str]:
        """Print what was seen. Returns: the slopes over their limits."""
        accepted, ends = len(self._clients.accepted), self._clients.ends.values()
        again = Counter(
            f"{one['category']} ({one['message']})"
            for end in ends
            for one in end.get("attempts", ())
            if one.get("category") in RETRIED
        )
        print(f"\n{accepted} jobs accepted in {took_s:.0f} s, {len(ends)} seen to end as")
        print(f"  {listed(Counter(end['phase'] for end in ends))}; workers run {self._place.ran().total()}")
        print(f"attempts begun again: {listed(again)}; jobs with deleted pods: {len(self._place.disturbed)}")
        print(f"faults: {listed(self._faults)}\nvisits: {listed(self._clients.visits)}\n\nfrom job {self._steady} on\n")
        print("| | first tenth | last tenth | per 1,000 jobs | limit | when all is over |\n|---|---|---|---|---|---|")
        over = []
        for name, samples in sorted(self._meter.series.items()):
            growth = self._meter.growth(name, self._steady, accepted)
            if growth is None:
                continue
            first, last, slope = growth
            limit = LIMITS.get(name.partition(": ")[2]) if accepted >= FEWEST else None
            print(f"| {name} | {first:.1f} | {last:.1f} | {slope:+.2f} | {limit or ''} | {samples[-1].value:.1f} |")
            if limit is not None and slope > limit:
                over.append(f"{name} grows by {slope:.2f} per 1,000 jobs, more than {limit}")
        return over


async def _ended(tasks: list[asyncio.Task[None]]) -> list[str]:
    """Cancel them. Returns: what had gone wrong in them."""
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    return [f"of the soak itself: {one!r}" for one in outcomes if isinstance(one, Exception)]


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


async def check(mode: str, jobs: int, length_s: float, seed: int, folder: Path) -> list[str]:
    """Returns: the broken promises."""
    place = (OneMachine if mode == "up" else KubernetesCluster)(folder, random.Random(seed + 2))
    try:
        await place.start()
        broken = await Soak(place, jobs, length_s, seed).run()
        print("\n".join(f"BROKEN: {one}" for one in broken), flush=True)  # before the end of it can fail
        return broken
    finally:
        await place.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("up", "cluster"), required=True)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    given = parser.parse_args()
    if given.mode == "cluster":
        build.build("control-plane")
    print(f"{machine()}\n--mode {given.mode} --jobs {given.jobs} --minutes {given.minutes:g} --seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="stoker-soak-") as folder:
        broken = asyncio.run(check(given.mode, given.jobs, 60 * given.minutes, given.seed, Path(folder)))
    print(f"{sum(os.times()[:4]):.0f} s of CPU, with those of every process that has ended")
    print("every promise held" if not broken else f"{len(broken)} promises broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
