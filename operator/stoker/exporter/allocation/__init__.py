"""Who holds which GPU of this node: asked of the kubelet, read from the node agent's folders, or not known.

Each way is an `owners.Allocations`: one `read()`, called on a thread of its own, which never raises. What can't be
attributed has a reason (`reasons`); docs/allocation.md says what to do about each. Never on the polling path, never
decides how time and energy are counted: that is `meters/`.

    kubelet.py         PodResources → pods and device names → holdings
    kubelet_client.py  the call; podresources.py reads its bytes
    devices.py         device names → uuids; sharing.py several owners of one device
    jobs.py            pod → Stoker's job, asked of the api (owners_route.py)
    folders.py         one machine: the workers' folders
"""

from __future__ import annotations

from stoker.exporter.clock import boottime_s
from stoker.exporter.owners import Allocation


class NoAllocation:
    """`--allocation none`: what is held is never known, and nothing is wrong about that (a node of Slurm's, say)."""

    def read(self) -> Allocation:
        return Allocation(boottime_s(), known=False)
