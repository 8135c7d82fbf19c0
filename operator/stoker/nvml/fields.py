"""Field values of one GPU, many in one call (nvmlDeviceGetFieldValues). Called by `board` and `load`.

The array has room for one entry more than is asked for: the library has been seen to write one past its end on NVLink
fields. Source: nvml.h (nvmlFieldValue_t, nvmlValueType_t); nvitop 1.7.2 (the extra entry).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

import pynvml

from .calls import DeviceCalls

ALL_LINKS = 0xFFFFFFFF
_CALL = "nvmlDeviceGetFieldValues"
_AT_ONCE = 64


class Field(NamedTuple):
    """One field; of several with the same key the values are added."""

    key: str
    id: int
    scale: float = 1.0
    scope: int = 0


class _Value(ctypes.Union):
    _fields_ = [
        ("double", ctypes.c_double),
        ("uint", ctypes.c_uint32),
        ("ulong", ctypes.c_ulong),
        ("ulonglong", ctypes.c_uint64),
        ("longlong", ctypes.c_int64),
        ("int", ctypes.c_int32),
        ("ushort", ctypes.c_uint16),
    ]


_BY_TYPE = ("double", "uint", "ulong", "ulonglong", "longlong", "int", "ushort")
_NONE = {"uint": 0xFFFFFFFF, "ulonglong": 0xFFFFFFFFFFFFFFFF}
"""NVML's "not available"."""


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint32),
        ("scope", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latency_us", ctypes.c_int64),
        ("type", ctypes.c_uint32),
        ("code", ctypes.c_uint32),
        ("value", _Value),
    ]


class Fields:
    """A set of fields of one GPU within one session; those that it does not have are asked for once."""

    def __init__(self, calls: DeviceCalls, fields: Iterable[Field]) -> None:
        self._calls = calls
        fields = list(fields)
        self._batches = [_Batch(fields[n : n + _AT_ONCE]) for n in range(0, len(fields), _AT_ONCE)]

    def read(self) -> dict[str, float]:
        """Key → value. Of a sum one part of which can't be read now, nothing. Raises: Lost, DriverLost."""
        values: dict[str, float] = {}
        incomplete: set[str] = set()
        for batch in self._batches:
            batch.read(self._calls, values, incomplete)
        return {key: value for key, value in values.items() if key not in incomplete}


class _Batch:
    def __init__(self, fields: list[Field]) -> None:
        self._fields = fields
        self._array = self._room()

    def _room(self) -> Any:
        array = (_FieldValue * (len(self._fields) + 1))()
        for value, field in zip(array, self._fields, strict=False):
            value.id, value.scope = field.id, field.scope
        return array

    def read(self, calls: DeviceCalls, values: dict[str, float], incomplete: set[str]) -> None:
        if not self._fields:
            return
        if code := self._ask(calls.handle):
            incomplete.update(field.key for field in self._fields)
            if calls.judge(_CALL, code):
                self._fields = []
            return
        absent = []
        for value, field in zip(self._array, self._fields, strict=False):
            if value.code:
                incomplete.add(field.key)
                if calls.judge(f"{_CALL}({field.id})", value.code):
                    absent.append(field)
                continue
            kind = _BY_TYPE[value.type] if value.type < len(_BY_TYPE) else "ulonglong"
            number = getattr(value.value, kind)
            if number == _NONE.get(kind):
                incomplete.add(field.key)
                continue
            values[field.key] = values.get(field.key, 0.0) + number * field.scale
        if absent:
            self._fields = [field for field in self._fields if field not in absent]
            self._array = self._room()

    def _ask(self, handle: Any) -> int:
        try:
            function = pynvml._nvmlGetFunctionPointer(_CALL)
        except pynvml.NVMLError as error:
            return int(error.value)
        return int(function(handle, ctypes.c_int(len(self._fields)), self._array))
