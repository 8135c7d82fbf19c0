"""JSON and prctl without their usual imports.

Owns what the standard library offers only together with modules that cost more than all the rest of the supervisor:
`json` pulls in `re`, `enum` and `collections` (7 ms), `ctypes` pulls in `struct` and its own package (3 ms). The C
modules behind them are there in every CPython since 3.8; where they are not (another Python), the public ones are used.
"""

from __future__ import annotations

MYPY = False
if MYPY:
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_prctl: list[Any] = []


def parse_json(text: str) -> Any:
    """The value. NaN and infinities, which are no JSON, become None. Raises: ValueError."""
    try:
        from _json import make_scanner
    except ImportError:
        import json

        return json.loads(text, strict=False, parse_constant=_Decoding.parse_constant)
    text = text.strip(" \t\n\r")
    try:
        value, end = make_scanner(_Decoding())(text, 0)  # type: ignore[arg-type]
    except (StopIteration, SystemError):
        # SystemError: the C scanner would raise json.decoder's error, which is not loaded here.
        raise ValueError("no JSON value") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if end != len(text):
        raise ValueError("something stands behind the JSON value")
    return value


def render_json(value: Any) -> str:
    """`value` (dicts with string keys, lists, tuples, strings, numbers, booleans, None) as JSON, in ASCII."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return "null"
        return float.__repr__(value)
    if isinstance(value, dict):
        return "{" + ", ".join(_quote(k) + ": " + render_json(v) for k, v in value.items()) + "}"
    return "[" + ", ".join(render_json(v) for v in value) + "]"


def find_prctl() -> Any:
    """The call itself: two whole numbers in, whether the kernel took it out; looked up once.

    To be called before a fork whose child calls `prctl`: where another thread was loading a library at the fork, ld.so
    aborts the child that looks anything up.
    """
    if not _prctl:
        try:
            import _ctypes

            address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
            _prctl.append(lambda *numbers: bool(_ctypes.call_function(address, (*numbers, 0, 0, 0)) == 0))
        except (ImportError, AttributeError, OSError):
            try:
                import ctypes

                call = ctypes.CDLL(None).prctl
                _prctl.append(lambda *numbers: bool(call(*numbers, 0, 0, 0) == 0))
            except (ImportError, AttributeError, OSError):
                _prctl.append(lambda *_numbers: False)
    return _prctl[0]


def prctl(option: int, argument: int) -> bool:
    """Whether the kernel took it."""
    return bool(find_prctl()(option, argument))


class _Decoding:
    """What the C scanner asks of its context: the attributes of `json.JSONDecoder`."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    memo: dict[str, str] = {}

    @staticmethod
    def parse_constant(_name: str) -> None:
        return None


def _quote(text: str) -> str:
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json.encoder import py_encode_basestring_ascii as encode_basestring_ascii
    return encode_basestring_ascii(text)
