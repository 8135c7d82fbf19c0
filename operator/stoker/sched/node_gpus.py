"""Which GPUs each node has, by kind, and what is left of them to a request for which not every GPU will do.

Owns this table; how many GPUs are free is `nodes`'. Called by `nodes` (changes), `place`, `gpu_choice` and `stoker.why`
(reading).
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.spec.gpu_types import GpuTypes
from stoker.spec.names import GPU_RESOURCE
from stoker.spec.node import GPUNode

from .gpu_groups import Claim, GpuGroup, group, worst_held
from .journal import Journal, K
from .request import WHOLE_GPUS, GpuFilter


class NodeGpus:
    def __init__(self, journal: Journal, types: GpuTypes) -> None:
        self._journal, self._types = journal, types
        self.groups: dict[int, tuple[GpuGroup, ...]] = {}
        """Slot → its node's."""
        self._kinds: dict[GpuGroup, int] = {}
        """GPUs of one type on one node, their numbers aside → how many nodes have such."""
        self.of_types: dict[str, int] = {}
        """Type → usable GPUs of all nodes."""
        self._has_parts = False
        """Some node offers slices, or GPUs that are shared."""
        self.mixed: dict[int, None] = {}
        """Slots with GPUs of several types."""

    def is_any(self, wanted: GpuFilter) -> bool:
        """Every GPU will do that there is."""
        return not self._has_parts and wanted in WHOLE_GPUS

    def types_for(self, wanted: GpuFilter) -> tuple[str, ...]:
        """The types of GPUs that there are and that would do."""
        return tuple(sorted({kind.type for kind in self._kinds if kind.suits(wanted)}))

    def type_on(self, slots: Iterable[int], wanted: GpuFilter) -> str:
        """What type the GPUs are of that a request with this filter gets there; empty: they may differ."""
        every, found = self.is_any(wanted), ""
        for slot in slots:
            for one in self.groups.get(slot, ()):
                if (every or one.suits(wanted)) and one.type != found:
                    if found:
                        return ""
                    found = one.type
        return found

    def overlap(self, slot: int, one: GpuFilter, other: GpuFilter) -> bool:
        """Some GPU of the node would do for both."""
        return any(found.suits(one) and found.suits(other) for found in self.groups.get(slot, ()))

    def may_hold(self, slot: int, own: GpuFilter, wanted: GpuFilter) -> bool:
        """Who asked for GPUs with the filter `own` may have some of the node's that would do for the other."""
        if own.resource != wanted.resource:
            return False
        return self.overlap(slot, own, wanted) or not self.overlap(slot, own, own)

    def room_beside(self, slot: int, held: Iterable[Claim], wanted: GpuFilter) -> int:
        """GPUs that a request with this filter may count on beside those holders, as far as types go: on a slot of one
        type all of them."""
        groups = self.groups.get(slot, ())
        if len(groups) == 1:
            return groups[0].usable if groups[0].suits(wanted) else 0
        matching = sum(one.usable for one in groups if one.suits(wanted))
        if not matching or matching == sum(one.usable for one in groups):
            return matching
        return matching - worst_held(groups, held, wanted)

    def put(self, slot: int, node: GPUNode) -> tuple[int, int]:
        """Returns: its GPUs that can be used, and all."""
        groups = group(node, self._types)
        self._count(slot, groups)
        self._journal.put(self.groups, slot, groups)
        if len(groups) > 1:
            self._journal.put(self.mixed, slot, None)
        else:
            self._journal.drop(self.mixed, slot)
        return sum(one.usable for one in groups), sum(one.total for one in groups)

    def drop(self, slot: int) -> None:
        self._count(slot, ())
        self._journal.drop(self.groups, slot)
        self._journal.drop(self.mixed, slot)

    def _count(self, slot: int, groups: tuple[GpuGroup, ...]) -> None:
        for some, sign in ((self.groups.get(slot, ()), -1), (groups, 1)):
            for one in some:
                self._add_up(self._kinds, one._replace(usable=0, total=0), sign)
                self._add_up(self.of_types, one.type, sign * one.usable)
        has_parts = any(kind.part or kind.resource != GPU_RESOURCE for kind in self._kinds)
        if has_parts != self._has_parts:
            self._journal.set(self, "_has_parts", has_parts)

    def _add_up(self, counts: dict[K, int], name: K, more: int) -> None:
        count = counts.get(name, 0) + more
        if count:
            self._journal.put(counts, name, count)
        else:
            self._journal.drop(counts, name)
