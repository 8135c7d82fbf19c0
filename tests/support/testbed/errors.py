"""What can go wrong with the test bed, as two types: this machine can't run it, or it ran and failed."""

from __future__ import annotations


class Unavailable(Exception):
    """This machine lacks something the test bed needs. The message says what to install or run."""


class BedError(Exception):
    """A part of the test bed was started and failed. The message holds the end of its log."""
