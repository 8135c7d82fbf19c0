"""The parent's side of the NVML child: starts it, hears it, ends and replaces it. Never imports NVML.

`Watch` runs in one thread of its own, which also spawns the child: the child ends with that thread (PDEATHSIG). A
child that hangs in the driver may survive SIGKILL; it is left, told of (`stuck`), and no other is started beside it.
The exporter's main composes it.
"""

from .child import child_environment
from .watcher import Watch

__all__ = ["Watch", "child_environment"]
