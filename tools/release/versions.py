"""One version in three spellings: Python's (PEP 440), the chart's (SemVer 2) and an image tag's. Pure; no I/O."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from tools.release.errors import Refused

_STAGES = {"a": "alpha", "b": "beta", "rc": "rc"}


def parse(text: str) -> Version:
    """The version, which all three can spell.

    Raises: Refused for what is no PEP 440 version, and for what SemVer has no order for (epochs, post-releases, the
    development version of a pre-release) or no place for (more than three numbers).
    """
    try:
        version = Version(text)
    except InvalidVersion:
        raise Refused(f"{text!r} is no version of PEP 440: write 0.5.1, 0.5.1rc1 or 0.5.1.dev3") from None
    for wrong, what in (
        (version.epoch, "an epoch"),
        (version.is_postrelease, "a post-release"),
        (len(version.release) != 3, f"{len(version.release)} numbers instead of three"),
        (version.pre and version.dev is not None, "a development version of a pre-release"),
    ):
        if wrong:
            raise Refused(f"{text} is {what}, which a chart's version (SemVer) can't express: write 0.5.1, 0.5.1rc1 …")
    return version


def semver(version: Version) -> str:
    """The chart's spelling: 0.5.1rc1 → 0.5.1-rc.1, 0.5.1.dev3 → 0.5.1-0.dev.3, 0.5.1+dirty as it is.

    Invariant: the order stays (without the local part, which SemVer does not order).
    """
    text = version.base_version
    if version.pre:
        text += f"-{_STAGES[version.pre[0]]}.{version.pre[1]}"
    elif version.dev is not None:
        text += f"-0.dev.{version.dev}"  # a number is before every word: development comes before alpha
    return f"{text}+{version.local}" if version.local else text


def image_tag(version: Version) -> str:
    """The images' spelling: a tag can't hold the plus sign of a local version."""
    return str(version).replace("+", "_")


def dirty(version: Version) -> Version:
    """The same, saying that it was made of files that no commit holds."""
    return Version(f"{version.public}+{version.local}.dirty" if version.local else f"{version.public}+dirty")
