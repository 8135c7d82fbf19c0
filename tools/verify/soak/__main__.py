"""A compressed day: 10,000 jobs of every kind, visitors, random faults; what grows, and whether every promise held.

    python -m tools.verify.soak --mode up|cluster [--jobs 10000] [--minutes 22] [--seed N]

up: a real `stoker up`, each job a process. cluster: operator and api on a real API server; pods are played by a
stand-in for kubelets. Processes are killed until 9:30 of the day; slopes are those from noon on, under the faults that
leave a process alive. Exits 1 if a promise was broken or a slope is over its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.harness import machine
from tests.support.testbed import build
from tools.verify.soak.cluster import KubernetesCluster
from tools.verify.soak.day import KILLS_END_H, STEADY_H, TTL_S, Planned, whole_day
from tools.verify.soak.meter import Meter
from tools.verify.soak.one_machine import OneMachine
from tools.verify.soak.people import People
from tools.verify.soak.place import Place

FAULTS = 44
VISITORS = 8
SAMPLE_S = 3.0
DRAIN_S = 600.0
LIMITS = {"RSS, MiB": 2.0, "descriptors": 1.0, "threads": 0.5}
"""The most that a process may grow per 1,000 jobs."""
FEWEST = 2000
"""Of fewer jobs a slope says nothing but how a process warms up."""
ANEW = frozenset({"Rejected", "StartTimeout", "NodeLost"})
"""What ends an attempt and is not the job's own doing."""


class Soak:
    def __init__(self, place: Place, plan: list[Planned], length_s: float, seed: int) -> None:
        self._place, self._plan, self._length_s = place, plan, length_s
        self._rng = random.Random(seed)
        self.meter, self.harms = Meter(), Counter[str]()
        self._began = 0.0

    async def run(self) -> list[str]:
        """The day, and until nothing of it is left. Returns: the promises that were broken."""
        people = People(self._place, self._rng)
        await people.prepare()
        self._began = time.monotonic()
        looking = asyncio.create_task(people.look())
        measuring = asyncio.create_task(self._measure(people))
        try:
            async with asyncio.TaskGroup() as day:
                others = [day.create_task(people.visit()) for _ in range(VISITORS)]
                await asyncio.wait([day.create_task(self._arrivals(people)), day.create_task(self._harm())])
                await asyncio.sleep(max(0.0, self._length_s - self._now_s()))
                for one in others:
                    one.cancel()
            await self._drained(people)
        finally:
            for task in (looking, measuring):
                task.cancel()
            await asyncio.gather(looking, measuring, return_exceptions=True)
            await people.close()
        broken = people.broken + [f"left behind: {one}" for one in (await self._place.left())[:20]]
        return broken + wrong_ends(people, self._place.ran()) + self._report(people)

    def _now_s(self) -> float:
        return time.monotonic() - self._began

    async def _arrivals(self, people: People) -> None:
        async with asyncio.TaskGroup() as lives:
            for job in self._plan:
                await asyncio.sleep(max(0.0, job.at_s - self._now_s()))
                lives.create_task(people.live(job))

    async def _harm(self) -> None:
        """One fault after the other at random moments; each is over before the next."""
        every_s = max(12.0, self._length_s / FAULTS)
        while True:
            await asyncio.sleep(self._rng.uniform(0.4, 1.6) * every_s)
            now_s = self._now_s()
            if now_s > 0.97 * self._length_s:
                return
            kills = now_s < self._length_s * KILLS_END_H / 24 and self._rng.random() < 0.5
            one = self._rng.choice([one for one in self._place.harms() if one.kills == kills])
            self.harms[one.name] += 1
            await one.do()

    async def _measure(self, people: People) -> None:
        said = -1
        while True:
            now_s = self._now_s()
            self.meter.take(now_s, len(people.accepted), self._place.processes(), self._place.sizes())
            if (hour := int(24 * now_s / self._length_s)) > said:
                said = hour
                rss = {
                    name: f"{self.meter.series[f'{name}: RSS, MiB'][-1].value:.0f}" for name in self._place.processes()
                }
                counts = f"{len(people.accepted)} accepted, {len(people.ends)} ended, broken {len(people.broken)}"
                print(f"{hour:02}:00  {counts}, MiB {rss}, faults {self.harms.total()}", flush=True)
            await asyncio.sleep(SAMPLE_S)

    async def _drained(self, people: People) -> None:
        """Every job has been seen to end, and is deleted by its time to live."""
        deadline = time.monotonic() + DRAIN_S
        missing: set[str] = set()
        while time.monotonic() < deadline:
            missing = {name for name, job in people.accepted.items() if job.ends} - people.ends.keys()
            if not missing:
                break
            await asyncio.sleep(2)
        people.broken += [f"{name}: lost, or its end was never seen" for name in sorted(missing)[:20]]
        deadline = time.monotonic() + TTL_S + 120
        while time.monotonic() < deadline:
            await asyncio.sleep(2)
            if not await people.listed() and not await self._place.left():
                return

    def _report(self, people: People) -> list[str]:
        """Print what was seen. Returns: the slopes over their limits."""
        noon_s = self._length_s * STEADY_H / 24
        over = []
        print(f"\n{len(people.accepted)} jobs accepted, {len(people.ends)} seen to end as")
        print(
            f"  {spelt(Counter(end['phase'] for end in people.ends.values()))}; workers run {self._place.ran().total()}"
        )
        anew = Counter(
            f"{one['category']} ({one['message']})"
            for end in people.ends.values()
            for one in end.get("attempts", ())
            if one.get("category") in ANEW
        )
        print(f"attempts begun anew: {spelt(anew)}")
        print(f"faults: {spelt(self.harms)}\nvisits: {spelt(people.visits)}")
        print("\n| | at noon | at midnight | per 1,000 jobs | limit | when all is over |\n|---|---|---|---|---|---|")
        for name, samples in sorted(self.meter.series.items()):
            growth = self.meter.growth(name, noon_s, self._length_s)
            if growth is None:
                continue
            limit = LIMITS.get(name.partition(": ")[2]) if len(people.accepted) >= FEWEST else None
            print(f"| {name} | {growth.first:.1f} | {growth.last:.1f} | {growth.slope:+.2f} | {limit or ''} ", end="")
            print(f"| {samples[-1].value:.1f} |")
            if limit is not None and growth.slope > limit:
                over.append(f"{name} grows by {growth.slope:.2f} per 1,000 jobs, more than {limit}")
        return over


def wrong_ends(people: People, ran: Counter[tuple[str, int, int]]) -> list[str]:
    """Jobs that did not end as they must, and workers that were not run exactly once."""
    broken = [f"{job}-{attempt}-{worker} was run {n} times" for (job, attempt, worker), n in ran.items() if n > 1]
    broken += [f"{name}: refused, {why}" for name, why in people.refused.items()]
    broken += [f"{name} was never accepted, but ran" for name in {job for job, _a, _w in ran} - people.accepted.keys()]
    for name in people.ends.keys() & people.accepted.keys():
        job, end = people.accepted[name], people.ends[name]
        last = end.get("attempt", 0)
        if end["phase"] != job.ends and job.ends:
            broken.append(f"{name} ({job.kind}) is {end['phase']}, not {job.ends}: {end.get('message')}")
        # The cluster, not the job, ended some; where the script was to fail in them, it did so less often.
        anew = sum(one.get("category") in ANEW for one in end.get("attempts", ()))
        if job.ends and not any(last - few in job.attempts for few in range(anew + 1)):
            broken.append(f"{name} ({job.kind}) took {last} attempts: {end.get('attempts')}")
        due = range(job.spec["workers"]) if end["phase"] == "Succeeded" else ()
        missing = [worker for worker in due if ran[name, last, worker] != 1]
        if missing:
            broken.append(f"{name}: Succeeded, but workers {missing} of attempt {last} never ran")
    return broken


def spelt(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


async def check(mode: str, jobs: int, length_s: float, seed: int, folder: Path) -> list[str]:
    """Returns: the broken promises."""
    made = random.Random(seed + 1)
    place: Place = OneMachine(folder, made) if mode == "up" else KubernetesCluster(folder, made)
    try:
        await place.start()
        broken = await Soak(place, whole_day(seed, jobs, length_s, place.most_gpus), length_s, seed + 2).run()
        print("\n".join(f"BROKEN: {one}" for one in broken), flush=True)  # before the end of it can fail
        return broken
    finally:
        await place.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("up", "cluster"), required=True)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=22.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    given = parser.parse_args()
    if given.mode == "cluster":
        build.build("control-plane")
    print(f"{machine()}\n--mode {given.mode} --jobs {given.jobs} --minutes {given.minutes:g} --seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="stoker-soak-") as folder:
        broken = asyncio.run(check(given.mode, given.jobs, 60 * given.minutes, given.seed, Path(folder)))
    print("every promise held" if not broken else f"{len(broken)} promises broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
