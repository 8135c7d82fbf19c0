"""One version, three spellings that keep its order; and what can't be spelled is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tools.release import versions
from tools.release.errors import Refused

_NUMBERS = st.integers(0, 12)
_SUFFIXES = st.sampled_from(["", "a", "b", "rc", ".dev"])
# Source: https://semver.org, the expression suggested there, without names.
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-]"
    r"[0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)


@st.composite
def spellable(draw: st.DrawFn) -> Version:
    suffix = draw(_SUFFIXES)
    text = ".".join(str(draw(_NUMBERS)) for _ in range(3)) + (f"{suffix}{draw(_NUMBERS)}" if suffix else "")
    return versions.parse(text)


def semver_key(text: str) -> tuple[list[int], bool, list[tuple[bool, int, str]]]:
    """SemVer's precedence: a release after its pre-releases, numbers before words, a longer list after its start."""
    numbers, _, rest = text.partition("+")[0].partition("-")
    parts = [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in rest.split(".") if part]
    return [int(number) for number in numbers.split(".")], not rest, parts


@given(spellable(), spellable())
def test_the_charts_spelling_keeps_the_order(one: Version, other: Version) -> None:
    key, another = semver_key(versions.semver(one)), semver_key(versions.semver(other))
    assert (one < other) == (key < another)
    assert (one == other) == (versions.semver(one) == versions.semver(other))


@given(spellable(), st.booleans())
def test_every_spelling_is_a_valid_one(version: Version, dirty: bool) -> None:
    version = versions.dirty(version) if dirty else version
    assert _SEMVER.fullmatch(versions.semver(version))
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", versions.image_tag(version))
    assert versions.parse(str(version)) == version
    assert ("dirty" in versions.semver(version)) == ("dirty" in versions.image_tag(version)) == dirty


@pytest.mark.parametrize(
    ("python", "chart", "tag"),
    [
        ("0.5.1", "0.5.1", "0.5.1"),
        ("0.5.1rc2", "0.5.1-rc.2", "0.5.1rc2"),
        ("1.0.0a1", "1.0.0-alpha.1", "1.0.0a1"),
        ("0.5.1.dev3", "0.5.1-0.dev.3", "0.5.1.dev3"),
        ("0.5.1+site.4", "0.5.1+site.4", "0.5.1_site.4"),
    ],
)
def test_spellings(python: str, chart: str, tag: str) -> None:
    version = versions.parse(python)
    assert (versions.semver(version), versions.image_tag(version)) == (chart, tag)


@pytest.mark.parametrize("text", ["0.5", "1!0.5.1", "0.5.1.post1", "0.5.1rc1.dev2", "0.5.1.2", "latest", "v"])
def test_what_a_chart_cant_say_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"0\.5\.1"):
        versions.parse(text)
