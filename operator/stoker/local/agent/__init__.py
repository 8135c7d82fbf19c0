"""The node agent: plays kubelet for one machine, each pod a local worker under the supervisor.

Crash-only: everything it must know is in the workers' folders; killed at any point, the next one goes on.
"""

from .agent import NodeAgent
from .inventory import Inventory, NvmlGpus, VirtualGpus
from .logs import WorkerLogs

__all__ = ["Inventory", "NodeAgent", "NvmlGpus", "VirtualGpus", "WorkerLogs"]
