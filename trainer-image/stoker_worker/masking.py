"""Secrets' values in what the ranks print: replaced before anything of it is written, kept or sent.

Owns what counts as a value there, and the end of the output that may be the beginning of one. Whatever a program makes
of a value (base64, an escaped newline) is not recognized. Imported where a job has secrets; called by `output`.
"""

from __future__ import annotations

MASK = b"***"
SHORTEST = 8
"""Bytes of a value, and of a line of it: shorter ones may be anything."""


def patterns(values: list[str]) -> list[bytes]:
    """What is masked: each line of each value, the longest first."""
    lines = {line.strip().encode("utf-8", "replace") for value in values for line in value.splitlines()}
    return sorted((line for line in lines if len(line) >= SHORTEST), key=lambda line: (-len(line), line))


class Masking:
    """One rank's output, piece by piece."""

    def __init__(self, found: list[bytes]) -> None:
        self._patterns = found
        self._held = b""
        """What may go on as a value."""

    def feed(self, data: bytes) -> bytes:
        """What can be written now. Cost: one search of `data` for each line of a value."""
        text = self._held + data if self._held else data
        for pattern in self._patterns:
            if pattern in text:
                text = text.replace(pattern, MASK)
        end = len(text) - self._begun(text)
        self._held = text[end:]
        return text[:end]

    def flush(self) -> bytes:
        """The rest: nothing comes after it. Half of a value is masked too."""
        held, self._held = self._held, b""
        return MASK if len(held) >= SHORTEST else held

    def _begun(self, text: bytes) -> int:
        """How many bytes of the end may be the beginning of a value: no value goes over the end of a line."""
        line = text.rfind(b"\n") + 1
        longest = 0
        for pattern in self._patterns:
            at = text.find(pattern[:1], max(line, len(text) - len(pattern) + 1))
            while at >= 0:
                if pattern.startswith(text[at:]):
                    longest = max(longest, len(text) - at)
                    break
                at = text.find(pattern[:1], at + 1)
        return longest
