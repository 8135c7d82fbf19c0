"""Device names → uuids, by what the newest frame shows. Pure.

A wrong name would charge the wrong job, so a name that fits two devices gives none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stoker.nvml.frames import GpuReading

_CDI = re.compile(r"[^/=]+/[^/=]+=(?P<name>.+)")
_INDEX = re.compile(r"\d{1,4}")
_DEVICE_FILE = re.compile(r"(?:/dev/)?nvidia(?P<minor>\d{1,4})(?:/gi(?P<gi>\d{1,4}))?(?:/vgpu\d{1,4})?")
_DRA_GPU = re.compile(r"gpu-(?P<number>\d{1,4})")
_DRA_UUID = re.compile(r"(?:gpu-|mig-)?(?P<uuid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


class Devices:
    """The GPUs and MIG devices of one frame, by all their names."""

    def __init__(self, gpus: Sequence[GpuReading]) -> None:
        self.gpus = tuple(gpu.uuid for gpu in gpus if gpu.uuid)
        self.parents = {mig.uuid: gpu.uuid for gpu in gpus for mig in gpu.mig}
        """MIG uuid → its GPU's."""
        self.holdable = {one for gpu in gpus for one in ([mig.uuid for mig in gpu.mig] or [gpu.uuid]) if one}
        """What a pod can hold: the MIG devices of a GPU that has them, else the GPU."""
        self._by_index = {gpu.index: gpu.uuid for gpu in gpus if gpu.uuid}
        self._by_minor = {int(gpu.info["minor"]): gpu.uuid for gpu in gpus if gpu.info.get("minor", "").isdigit()}
        self._instances = {
            (gpu.uuid, mig.gpu_instance): mig.uuid for gpu in gpus for mig in gpu.mig if mig.gpu_instance is not None
        }
        self._by_letters = {uuid[4:].lower(): uuid for uuid in (*self.gpus, *self.parents)}

    def shows(self, uuid: str) -> bool:
        return uuid in self.parents or uuid in self.gpus

    def resolve(self, device_id: str) -> str | None:
        """The uuid of a device plugin's device; None if the id names none.

        Ids: `GPU-…`, `MIG-…`, either with `::3` behind it (time-slicing, MPS) or `nvidia.com/gpu=` before it (CDI);
        `0`: NVML's index; `nvidia0`, `nvidia0/vgpu1`, `nvidia0/gi1`: the device file's number (GKE).
        """
        cdi = _CDI.fullmatch(device_id)
        name = (cdi["name"] if cdi else device_id).partition("::")[0]
        if self.shows(name) or is_uuid(name):
            return name
        if _INDEX.fullmatch(name):
            return self._by_index.get(int(name))
        file = _DEVICE_FILE.fullmatch(name)
        if file is None:
            return None
        gpu = self._by_minor.get(int(file["minor"]))
        if gpu is None or file["gi"] is None:
            return gpu
        return self._instances.get((gpu, int(file["gi"])))

    def resolve_claimed(self, device: str) -> str | None:
        """The uuid of a DRA driver's device; None if the name fits none.

        `gpu-<n>` is NVML's index in some releases of NVIDIA's driver and the device file's number in others: it is
        resolved where both are the same GPU. Names that hold a uuid give it.
        """
        number = _DRA_GPU.fullmatch(device)
        if number is not None:
            n = int(number["number"])
            uuid = self._by_index.get(n)
            return uuid if uuid is not None and self._by_minor.get(n) == uuid else None
        letters = _DRA_UUID.fullmatch(device.lower())
        return None if letters is None else self._by_letters.get(letters["uuid"])


def is_uuid(name: str) -> bool:
    return name.startswith(("GPU-", "MIG-"))
