"""One candidate as a process of its own, for tests that freeze and kill it.

python election_process.py <kubeconfig> <namespace> <identity> <file>: appends to the file, one JSON line each, when it
begins and ends to lead, and about every 20 ms while its work runs; its work also writes a Lease named `<identity>-work`
through the fence, and says how each write went. Times are the machine's boot clock, the same for all.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from stoker.kube.client import Call, KubeClient
from stoker.kube.lease import LeaderElection, Timing
from stoker.store.clock import SystemClock
from stoker.store.port import NotLeader, StoreError

TIMING = Timing(lease_s=3.0, margin_s=1.0, renew_s=0.4, retry_s=0.2, stop_s=0.5)


async def main(kubeconfig: str, namespace: str, identity: str, file: str) -> None:
    clock = SystemClock()
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str) -> None:
        line = {"at": clock.monotonic(), "who": identity, "what": what, "transitions": election.transitions}
        os.write(out, (json.dumps(line) + "\n").encode())

    async with KubeClient.from_config(kubeconfig=kubeconfig, clock=clock) as client:
        election = LeaderElection(client, clock, namespace=namespace, identity=identity, timing=TIMING)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        note("ready")

        async def work() -> None:
            note("begin")
            number = 0
            try:
                while True:
                    number += 1
                    name = f"{identity}-{election.transitions}-{number}"
                    body = json.dumps(
                        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
                    ).encode()
                    call = Call("create", "Lease", name, tries=1, timeout_s=1.0)
                    try:
                        await client.request(call, "POST", path, body=body, fence=election.check)
                        note("wrote")
                    except NotLeader:
                        note("fenced")
                    except StoreError:
                        note("failed")
                    await asyncio.sleep(0.02)
            finally:
                note("end")

        await election.run(work)


if __name__ == "__main__":
    assert Path(sys.argv[1]).exists()
    asyncio.run(main(*sys.argv[1:]))
