"""Two operators: the leader is frozen in mid-work, the other takes over; thawed, the first writes nothing more.

    python -m tools.verify.leader [--rounds 5]

The proof is the API server's own audit log: each operator is a user of its own, and after its thaw the frozen one has
no write that was let through but to the Lease. The jobs it was about to start are started once each, by the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from stoker.kube.client import KubeClient
from stoker.kube.store import KubeStore
from stoker.spec.job import JOBS
from stoker.spec.pod import PODS
from stoker.store.clock import SystemClock
from tests.support.harness import free_port, until
from tests.support.testbed import build
from tests.support.testbed.control_plane import ControlPlane
from tools.bench.cluster import Bench, is_leading, operator_flags, prepare

JOBS_PER_ROUND = 150
POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [first, second]
  verbs: [create, update, patch, delete]
- level: None
"""


class Operators:
    """The two processes, each with its own user."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane, self._folder = plane, folder
        self._ports = {name: free_port() for name in ("first", "second")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in self._ports:
            self.start(name)

    def start(self, name: str) -> None:
        flags = operator_flags(self._plane.kubeconfig_for(name), self._ports[name])
        with (self._folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "stoker.controller.main", *flags, f"--identity={name}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def leader(self, *candidates: str) -> str:
        return until(
            lambda: next((name for name in candidates if is_leading(self._plane, self._ports[name])), ""),
            "a leader",
            timeout_s=60,
        )

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def writes(audit: Path, user: str, after: float) -> list[str]:
    """What the API server let this user write after the moment, Leases apart."""
    found = []
    for line in audit.read_text().splitlines():
        entry: dict[str, Any] = json.loads(line)
        at = datetime.fromisoformat(entry["stageTimestamp"]).timestamp()
        done = entry.get("responseStatus", {}).get("code", 0) < 400
        kind = entry["objectRef"]["resource"]
        if entry["user"]["username"] == user and at > after and done and kind != "leases":
            found.append(f"{entry['verb']} {kind} {entry['objectRef'].get('name', '')}")
    return found


async def one_round(number: int, bench: Bench, operators: Operators, store: KubeStore, audit: Path) -> dict[str, float]:
    leader = await asyncio.to_thread(operators.leader, "first", "second")
    other = "second" if leader == "first" else "first"
    began = time.time()
    filling = asyncio.create_task(bench.fill_jobs(JOBS_PER_ROUND, f"r{number}"))
    while len(writes(audit, leader, began)) < 40:  # in the midst of its work  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    operators.processes[leader].send_signal(signal.SIGSTOP)
    frozen = time.time()
    await filling
    await asyncio.to_thread(operators.leader, other)
    took = time.time() - frozen
    thawed = time.time()
    operators.processes[leader].send_signal(signal.SIGCONT)
    expected = (number + 1) * JOBS_PER_ROUND
    async with asyncio.timeout(60):
        while len((await store.snapshot(PODS)).items) < expected:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    await asyncio.sleep(3)
    late = writes(audit, leader, thawed)
    assert late == [], late
    jobs, pods = (await store.snapshot(JOBS)).items, (await store.snapshot(PODS)).items
    assert len(pods) == len(jobs) == expected
    assert {job.status.attempt for job in jobs} == {1}
    before = len(writes(audit, leader, began))
    return {"fail_over_s": took, "written_before": before, "written_after": len(late)}


async def rounds(count: int, folder: Path) -> list[dict[str, float]]:
    policy, audit = folder / "policy.yaml", folder / "audit.log"
    policy.write_text(POLICY)
    args = {"kube-apiserver": [f"--audit-policy-file={policy}", f"--audit-log-path={audit}"]}
    users = {"first": ["system:masters"], "second": ["system:masters"]}
    with ControlPlane(controllers=False, scheduler=False, users=users, args=args) as plane:
        prepare(plane)
        async with KubeClient.from_config(kubeconfig=plane.kubeconfig, clock=SystemClock()) as client:
            bench, store = Bench(plane, client, folder), KubeStore(client, SystemClock())
            await bench.fill_nodes(200)
            operators = await asyncio.to_thread(Operators, plane, folder)
            try:
                return [await one_round(number, bench, operators, store, audit) for number in range(count)]
            finally:
                operators.stop()


def check(count: int) -> list[dict[str, float]]:
    """Raises: AssertionError where a thawed operator wrote, or a job was started twice or not at all."""
    with tempfile.TemporaryDirectory(prefix="stoker-leader-") as folder:
        return asyncio.run(rounds(count, Path(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    build.build("control-plane")
    found = check(asked.rounds)
    took = [one["fail_over_s"] for one in found]
    print("| what | seen |\n|---|---|")
    print(f"| rounds, jobs in each | {len(found)}, {JOBS_PER_ROUND} |")
    print(f"| writes of the leader before it was frozen | {', '.join(str(int(o['written_before'])) for o in found)} |")
    print(f"| writes let through after its thaw | {sum(int(one['written_after']) for one in found)} |")
    print(f"| SIGSTOP to the other leading (lease 15 s) | {median(took):.1f} s ({min(took):.1f} to {max(took):.1f}) |")
    print("| jobs lost, started twice | 0, 0 |")


if __name__ == "__main__":
    main()
