"""The lean JSON against the standard library's."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_worker.light_stdlib import parse_json, render_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_what_is_rendered_is_what_json_reads(value):
    text = render_json(value)
    assert text.isascii()
    assert json.loads(text) == value
    assert parse_json(text) == value


@given(values)
def test_what_json_renders_is_read(value):
    assert parse_json(json.dumps(value, indent=1)) == value


@pytest.mark.parametrize("text", ["", "{", "[1,", "nul", "1 2", "{'a': 1}", '"', "[" * 100_000])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_what_json_has_no_word_for_is_null():
    assert json.loads(render_json([math.nan, math.inf, 1.5])) == [None, None, 1.5]
    assert parse_json('{"loss": NaN, "x": -Infinity}') == {"loss": None, "x": None}
