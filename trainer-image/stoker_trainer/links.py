"""The links of the GPUs here, NVLink and PCIe: what NVML reads of them, what they could carry, what is wrong.

A pair's norm is what the links between the two could carry as the boards are made, not what their model's datasheet
says: the same model comes with 18 links, 12 or 8, and joined by switches, bridges or not at all. Links to a switch
count though they are down. `read` needs the package nvidia-ml-py; all else is pure. Called by `burn_in`.

Source: nvml.h (NvLink methods; the most of a PCIe link is that of GPU and slot together); NCCL and PyTorch count the
links of a pair in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SWITCH, DOWN = "NVSwitch", "down"
OF_THE_NORM = 0.25
"""Copies reach 0.8 of the norm as a rule. Those that go over PCIe instead (63 GB/s at most, with 16 lanes of its fifth
generation) stay under a quarter of what an A100's 12 links carry, or any newer board's."""
_COUNT, _SPEED, _SPEED_BEFORE = 91, 164, 90
"""Fields: how many links the GPU has; MB/s of one in one direction, and of any for drivers that know no better."""
_MOST_LINKS = 64
_TO_GPU, _TO_SWITCH = 0, 2
_NOT_KNOWN = 0xFFFFFFFF
_PCIE_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Generation → transfers a second, of a bit each on each lane."""


class Unreadable(Exception):
    """NVML can't be read here."""


@dataclass(frozen=True)
class Links:
    """Those of one GPU."""

    bus: str
    """The GPU's PCI address."""
    ends: tuple[str, ...] = ()
    """Of each link that the GPU has: the PCI address of the GPU at its other end, SWITCH, DOWN, or empty (something
    else)."""
    link_gb_s: float = 0.0
    """What each could carry in one direction, with what the protocol takes of it; 0: not known."""
    pcie_gb_s: float = 0.0
    """What the PCIe link could carry in one direction, as GPU and slot are made; 0: not known."""

    @property
    def up(self) -> int:
        return len(self.ends) - self.ends.count(DOWN)


@dataclass(frozen=True)
class Copies:
    """How fast copies between the GPU and one peer were. Units: GB/s."""

    to: float
    back: float


def norm_gb_s(one: Links, other: Links) -> float:
    """What a copy from one to the other could reach; 0: no NVLink joins them, or it is not known."""
    if direct := one.ends.count(other.bus):
        return direct * one.link_gb_s
    if SWITCH in one.ends and SWITCH in other.ends:
        return min(len(links.ends) * links.link_gb_s for links in (one, other))
    return 0.0


def faults(links: Mapping[str, Links], uuid: str, copies: Mapping[str, Copies]) -> list[str]:
    """What is wrong with the NVLinks of a GPU, for people; nothing: what was measured is as it should be.

    `copies`: by the peer's uuid. Of peers behind a switch the fastest one counts, as the GPU's own links are the same
    for all of them: one that is slow may be so by its own fault.
    """
    own, wrong = links[uuid], []
    alike = [one.up for one in links.values() if SWITCH in one.ends and len(one.ends) == len(own.ends)]
    if own.up < max(alike, default=0):
        wrong.append(f"{own.ends.count(DOWN)} of {len(own.ends)} NVLinks are down, others' here are up")
    behind_switch = [peer for peer in copies if not own.ends.count(links[peer].bus)]
    for peers in (behind_switch, *([peer] for peer in copies if peer not in behind_switch)):
        for direction in ("to", "back"):
            rates = {peer: getattr(copies[peer], direction) for peer in peers}
            norms = {peer: norm_gb_s(own, links[peer]) for peer in peers}
            if peers and all(rate < OF_THE_NORM * norms[peer] for peer, rate in rates.items()):
                best = max(rates, key=lambda peer: rates[peer])
                way = "to" if direction == "to" else "from"
                wrong.append(f"NVLinks {way} {best} carry {rates[best]:.1f} GB/s of {norms[best]:.1f}")
    return wrong


def read() -> dict[str, Links]:
    """Of each GPU that NVML shows, by uuid: on one machine all of them, whichever were leased. Raises: Unreadable."""
    try:
        import pynvml
    except ImportError:
        raise Unreadable("the package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise Unreadable(f"NVML: {error}") from None
    found = {}
    for number in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            found[pynvml.nvmlDeviceGetUUID(handle)] = _links(pynvml, handle)
        except pynvml.NVMLError:  # one that is lost
            continue
    return found


def _links(nvml: Any, handle: Any) -> Links:
    """Raises: NVMLError: the GPU can't be read."""
    [count] = _fields(nvml, handle, (_COUNT, 0))
    ends = tuple(_end(nvml, handle, link) for link in range(min(count, _MOST_LINKS)))
    up = next((link for link, end in enumerate(ends) if end != DOWN), 0)
    speed = max(_fields(nvml, handle, (_SPEED, up), (_SPEED_BEFORE, 0))) if ends else 0
    return Links(_address(nvml.nvmlDeviceGetPciInfo(handle)), ends, speed / 1000, _pcie_gb_s(nvml, handle))


def _pcie_gb_s(nvml: Any, handle: Any) -> float:
    try:
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        lanes: int = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    except nvml.NVMLError:
        return 0.0
    return _PCIE_GIGATRANSFERS.get(generation, 0.0) * lanes / 8


def _end(nvml: Any, handle: Any, link: int) -> str:
    """Of a link that sleeps too: it is up when it is used."""
    try:
        if nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_DISABLED:
            return DOWN
        kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
        if kind == _TO_SWITCH:
            return SWITCH
        return _address(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)) if kind == _TO_GPU else ""
    except nvml.NVMLError:
        return ""


def _address(pci: Any) -> str:
    return f"{pci.domain:08x}:{pci.bus:02x}:{pci.device:02x}"


def _fields(nvml: Any, handle: Any, *asked: tuple[int, int]) -> list[int]:
    """Of (field, link) each; 0: the driver or the GPU has no such thing. Raises: NVMLError.

    The array has room for one entry more than is asked for: the library has been seen to write past its end.
    """
    values = (nvml.c_nvmlFieldValue_t * (len(asked) + 1))()
    for value, (field, link) in zip(values, asked, strict=False):
        value.fieldId, value.scopeId = field, link
    nvml._nvmlCheckReturn(nvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")(handle, len(asked), values))
    answers = values[: len(asked)]
    return [one.value.uiVal if not one.nvmlReturn and one.value.uiVal != _NOT_KNOWN else 0 for one in answers]
