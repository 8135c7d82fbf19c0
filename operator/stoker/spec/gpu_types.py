"""Which type a GPU is of: a short name for what queues limit and guarantee.

Owns the table from models to types. Pure. Called by the scheduler (`sched.nodes`) and `controller.queues`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .names import GPU_TYPE, MIG_PREFIX, RESERVED_TYPES, SHARED_RESOURCE, TYPE_RESERVED

UNKNOWN_TYPE = "unknown"
"""Of a GPU whose model is not known, or in no row of the table. It counts among all GPUs alone."""

_SHIPPED = (
    *("gb300", "gb200", "b300", "b200", "b100", "gh200", "h800", "h200", "h100", "h20"),
    *("a800", "a100", "a40", "a30", "a16", "a10g", "a10", "a2", "l40s", "l40", "l20", "l4", "l2"),
    *("v100s", "v100", "p100", "p40", "p4", "t4", "t4g", "m60", "m40", "k80"),
)
"""NVIDIA's data-centre GPUs. Each is a word of the model's name as NVML and GPU Feature Discovery give it."""
_SLICE = r"(?:\d+c\.)?\d+g\.\d+gb(?:-me)?(?:[.+][a-z.]*[a-z])?"
_PROFILE = re.compile(rf"mig-{_SLICE}")
_MIG = re.compile(rf"\bmig[- ]({_SLICE})")
_WORDS = re.compile(r"[a-z0-9.+]+")


class GpuTypes:
    """The shipped table, with rows before it."""

    def __init__(self, rows: Mapping[str, str] | None = None) -> None:
        """`rows`: model pattern → type. A pattern is words that stand in the model's name one after the other, in any
        case; of several that do, the one with the most letters counts."""
        patterns = [(_words(pattern), name) for pattern, name in (rows or {}).items()]
        patterns += [((name,), name) for name in _SHIPPED]
        self._patterns = sorted(patterns, key=lambda row: -len("".join(row[0])))  # of equals, given ones stay first
        self._known: dict[str, str] = {}

    def knows(self, name: str) -> bool:
        """A GPU may be of that type."""
        whole = name.removesuffix("-shared")
        return any(one in (name, whole) for _, one in self._patterns) or bool(_PROFILE.fullmatch(name))

    def of(self, model: str) -> str:
        """A slice of a MIG GPU is of type 'mig-1g.10gb', a shared one of 'mig-1g.10gb.shared', a shared GPU of
        'h100-shared'."""
        found = self._known.get(model)
        if found is None:
            found = self._known[model] = self._of(model.lower())
        return found

    def offered_as(self, resource: str, model: str) -> str:
        """The type of what a device plug-in offers under that name: a MIG profile is the type, whatever the model."""
        found = self.of(model)
        is_shared = found.endswith("shared") or resource == SHARED_RESOURCE
        if resource.startswith(MIG_PREFIX):
            found = resource.partition("/")[2]
        return _shared(found) if is_shared else found

    def _of(self, model: str) -> str:
        there = _words(model)
        if mig := _MIG.search(model):
            found = f"mig-{mig[1].replace('+', '.')}"
        else:
            found = next((name for words, name in self._patterns if _stands_in(words, there)), UNKNOWN_TYPE)
        return _shared(found) if "shared" in there else found


def _shared(name: str) -> str:
    """As device plug-ins call it where they rename what is shared."""
    if name == UNKNOWN_TYPE or name.endswith(("-shared", ".shared")):
        return name
    return f"{name}.shared" if _PROFILE.fullmatch(name) else f"{name}-shared"


def parse_rows(texts: Iterable[str]) -> dict[str, str]:
    """Of options like 'h100 nvl=h100-nvl'. Raises: ValueError."""
    rows = {}
    for text in texts:
        pattern, equals, name = text.rpartition("=")
        if not equals or not _words(pattern):
            raise ValueError(f"'{text}': write MODEL=TYPE, for example 'h100 nvl=h100-nvl'")
        if not GPU_TYPE.fits(name):
            raise ValueError(f"'{text}': '{name}' {GPU_TYPE.says}")
        if name in RESERVED_TYPES:
            raise ValueError(f"'{text}': '{name}' {TYPE_RESERVED}")
        rows[pattern] = name
    return rows


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORDS.findall(text.lower()))


def _stands_in(words: tuple[str, ...], there: tuple[str, ...]) -> bool:
    return any(there[at : at + len(words)] == words for at in range(len(there) - len(words) + 1))


SHIPPED = GpuTypes()
