"""Which of the nodes a gang that wants to be close together may use: those of one domain, or of as few as can be.

A domain is the nodes that share the labels of a topology level and of every level outside it (zone, then block, then
rack). Owns the choice among domains; a node within one is `place`'s choice. Pure. Called by `place`, `preempt` and
`stoker.why`. Shapes: one entry per slot. Cost: O(nodes) in numpy per level.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .columns import Column, Mask
from .node_domains import NO_DOMAIN
from .nodes import NodeTable
from .request import Near


def narrowed(table: NodeTable, near: Near, workers: int, fits: Column) -> Column:
    """`fits`, the workers that each slot takes, left only where the gang is to go; it need not fit there.

    The best fit: of the domains that hold the whole gang the one that holds least, so that large ones stay whole.
    """
    if near.required:
        fits = _one(table, near.required, workers, fits)
    levels = _from(table, near)
    for level in levels:
        found = _one(table, level, workers, fits)
        if found.any():
            return found
    return _few(table, levels[0], workers, fits) if levels else fits


def likeliest(table: NodeTable, near: Near, workers: int, could: Column, now: Column) -> Column:
    """`could` left only in the domain of the required level that is likeliest to hold the gang next: of those that
    could the one that takes most of it now; if none could, the one that could take most."""
    if not near.required:
        return could
    ids = table.domain_of(near.required)
    holds, takes = _sums(ids, could), _sums(ids, now)
    if not holds.any():
        return np.zeros_like(could)
    worth = np.where(holds >= workers, takes + 1, 0) if (holds >= workers).any() else holds
    return _only(ids, _first(table, ids, worth == worth.max()), could)


def domains(table: NodeTable, near: Near) -> Iterator[Mask | None]:
    """The slots of each domain in which the gang may be, that with the first node by name first; None: of all."""
    if not near.required:
        yield None
        return
    ids = table.domain_of(near.required)
    slots = np.flatnonzero(ids != NO_DOMAIN)
    in_order = ids[slots[np.argsort(table.ranks[slots])]]
    for one in in_order[np.sort(np.unique(in_order, return_index=True)[1])]:
        yield ids == one


def crowding(table: NodeTable) -> Column:
    """Free GPUs of each slot's innermost domain, so that among equals a node of the fullest domain is taken."""
    ids = table.domain_of(table.levels[-1])
    return _sums(ids, np.maximum(table.free_gpu, 0))[ids]


def _from(table: NodeTable, near: Near) -> list[str]:
    """The preferred level and those outside it, innermost first, up to the required one."""
    if near.preferred not in table.levels:
        return []
    begin = table.levels.index(near.required) + 1 if near.required in table.levels else 0
    return list(reversed(table.levels[begin : table.levels.index(near.preferred) + 1]))


def _one(table: NodeTable, level: str, workers: int, fits: Column) -> Column:
    ids = table.domain_of(level)
    sums = _sums(ids, fits)
    enough = sums >= workers
    if not enough.any():
        return np.zeros_like(fits)
    return _only(ids, _first(table, ids, enough & (sums == sums[enough].min())), fits)


def _few(table: NodeTable, level: str, workers: int, fits: Column) -> Column:
    """The fullest domains first; the last is the smallest that takes the rest."""
    ids, chosen = table.domain_of(level), np.zeros_like(fits)
    left = np.where(ids != NO_DOMAIN, fits, 0)
    if int(left.sum()) < workers:
        return fits
    while True:
        sums, missing = _sums(ids, left), workers - int(chosen.sum())
        enough = sums >= missing
        best = sums == (sums[enough].min() if enough.any() else sums.max())
        chosen += _only(ids, _first(table, ids, best), left)
        if enough.any():
            return chosen
        left = np.where(chosen > 0, 0, left)


def _sums(ids: Column, counts: Column) -> Column:
    """Domain → sum; that of the nodes in none is 0."""
    sums: Column = np.bincount(ids, weights=counts).astype(np.int64)
    if len(sums):
        sums[NO_DOMAIN] = 0
    return sums


def _first(table: NodeTable, ids: Column, among: Mask) -> int:
    """Of these domains the one with the first node by name: ties don't depend on who was observed first."""
    slots = np.flatnonzero(among[ids])
    return int(ids[slots[table.ranks[slots].argmin()]])


def _only(ids: Column, domain: int, counts: Column) -> Column:
    return np.where(ids == domain, counts, 0)
