"""The slowest GPU of a gang, from what its GPUs did; the others wait for it, and what that costs. Pure.

Ranks that train in step end each step with the slowest. The GPU that needs longest is active most, while the others
wait in a collective: with activities a of it and m in the median, its step takes a, theirs m, and 1 - m/a of the gang's
time is lost (a little more, since kernels that wait count as activity too). Where activity does not show it, the time
for which a GPU was held down says at most what is lost. Not measured on hardware. Called by `hints`.

A rank with more work than the others looks the same, so that activity alone blames no GPU: that takes heat (`blamed`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from stoker.spec.usage import HELD_DOWN, GpuReceipt

from .amounts import Amounts

FEWEST = 4
"""GPUs: of fewer no median says which is the odd one."""
APART = 0.10
"""Of the time: so much more active, or held down, than the median."""
_HEAT = ("hw_thermal", "sw_thermal")
"""Not the power brake: that is the rack's."""


@dataclass(frozen=True, slots=True)
class Straggler:
    worker: int
    node: str
    uuid: str
    active: tuple[float, float] | None
    """Its SM activity and the median's; None: that does not show it."""
    held_down: tuple[float, float]
    """Its share of time held down by heat or power, and the median's."""
    lost_gpu_s: float
    """Of the gang's GPU-seconds; at most, where `active` is None."""

    def __str__(self) -> str:
        signs = []
        if self.active is not None:
            signs.append(f"its SMs were active {self.active[0]:.0%} of the time ({self.active[1]:.0%})")
        if self.held_down[0] > self.held_down[1]:
            signs.append(f"it was held down by heat or power {self.held_down[0]:.0%} of it ({self.held_down[1]:.0%})")
        cost = f"{'at most' if self.active is None else 'about'} {self.lost_gpu_s / 3600:.1f} GPU-hours"
        return (
            f"The other GPUs wait for worker {self.worker}'s ({self.uuid} on {self.node}): {' and '.join(signs)}, in "
            f"brackets the gang's median. That cost {cost}. If it shows again with other work, have an administrator "
            f"look at it (`stoker node cordon {self.node} --gpu {self.uuid}`)."
        )


class GangGpu(NamedTuple):
    worker: int
    node: str
    uuid: str


class GpuUse(NamedTuple):
    """What a GPU did for a gang."""

    amounts: Amounts = Amounts()
    held_s: float = 0.0
    """Held down by heat or power."""
    hot_s: float = 0.0
    """Of that: by heat."""

    @classmethod
    def of(cls, receipt: GpuReceipt) -> GpuUse:
        held_s, hot_s = (sum(receipt.throttled_s.get(why, 0.0) for why in whys) for whys in (HELD_DOWN, _HEAT))
        return cls(Amounts.of(receipt), held_s, hot_s)

    def plus(self, other: GpuUse) -> GpuUse:
        return GpuUse(self.amounts.plus(other.amounts), self.held_s + other.held_s, self.hot_s + other.hot_s)

    def minus(self, other: GpuUse) -> GpuUse:
        return GpuUse(self.amounts.minus(other.amounts), self.held_s - other.held_s, self.hot_s - other.hot_s)


def gang_of(receipts: Iterable[GpuReceipt], attempt: int) -> dict[GangGpu, GpuUse]:
    """The attempt's GPUs, and what each did."""
    gang: dict[GangGpu, GpuUse] = defaultdict(GpuUse)
    for receipt in receipts:
        if receipt.attempt == attempt:
            which = GangGpu(receipt.worker, receipt.node, receipt.uuid)
            gang[which] = gang[which].plus(GpuUse.of(receipt))
    return dict(gang)


def blamed(gang: Mapping[GangGpu, GpuUse]) -> Iterator[tuple[GangGpu, str]]:
    """The GPUs by whose own fault the others wait, and what shows it: heat holds them down for `APART` of the time more
    than the median, and they don't wait themselves."""
    if len(gang) < FEWEST:
        return
    hot = {which: min(1.0, use.hot_s / use.amounts.seen_s) for which, use in gang.items()}
    active = {which: use.amounts.sm_ratio or 0.0 for which, use in gang.items()}
    middle_hot, middle_active = median(hot.values()), median(active.values())
    for which, share in hot.items():
        if share >= middle_hot + APART and active[which] >= middle_active:
            yield which, f"held down by heat {share:.0%} of the time, the gang's median {middle_hot:.0%}"


def straggler(receipts: Collection[GpuReceipt], observed_s: float) -> Straggler | None:
    """Of the newest attempt, all of whose GPUs were observed for `observed_s`. None: no GPU stands out."""
    slots = gang_of(receipts, max(receipt.attempt for receipt in receipts))
    if len(slots) < FEWEST or any(slot.amounts.seen_s < observed_s for slot in slots.values()):
        return None
    held = {key: slot.held_s / slot.amounts.seen_s for key, slot in slots.items()}
    active = {key: slot.amounts.sm_ratio or 0.0 for key, slot in slots.items()}
    middle, middle_held = median(active.values()), median(held.values())
    whole_s = sum(slot.amounts.allocated_s for slot in slots.values())
    is_active = all(slot.amounts.sm_ratio is not None for slot in slots.values())
    slowest = max(active, key=lambda key: active[key])
    if is_active and active[slowest] >= middle + APART:
        shown = active[slowest], middle
        return Straggler(*slowest, shown, (held[slowest], middle_held), whole_s * (1 - middle / active[slowest]))
    slowest = max(held, key=lambda key: held[key])
    if held[slowest] >= middle_held + APART:
        return Straggler(*slowest, None, (held[slowest], middle_held), whole_s * (held[slowest] - middle_held))
    return None
