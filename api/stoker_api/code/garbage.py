"""Which bundles and files of a project nobody needs any more. Pure; carried out by `project.py`.

Two steps, in this order: what is named by a bundle is known only once the bundles that go are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set


def stale_bundles(used_at: Mapping[str, float], named: Set[str], now_s: float, keep_s: float) -> list[str]:
    """Of the bundles (digest → last use) those that no job names and that were not used for `keep_s`."""
    return [digest for digest, used_s in used_at.items() if digest not in named and used_s <= now_s - keep_s]


def unnamed_files(named_at: Mapping[str, float], named: Collection[str], now_s: float, lease_s: float) -> list[str]:
    """Of the files (SHA-256 → when a client last sent or named it) those in no bundle whose lease is over."""
    return [sha256 for sha256, told_s in named_at.items() if sha256 not in named and told_s <= now_s - lease_s]
