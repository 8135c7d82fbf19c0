"""The kubelet's answer to PodResources v1 `List`, from its bytes. Pure; written by hand, for the generated code and
protobuf's runtime would cost more memory than the rest of the exporter's parent.

Source: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; protobuf.dev/programming-guides/encoding. Fields that are not
read here are skipped, so a newer kubelet does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_FIELD = (1 << 29) - 1


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device that a device plugin gave."""

    resource: str
    """`nvidia.com/gpu`."""
    id: str
    """As the plugin named it to the kubelet. The kubelet gives one id to one pod at a time."""


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of Dynamic Resource Allocation. Pods that share a claim share its devices."""

    driver: str
    """`gpu.nvidia.com`."""
    pool: str
    device: str
    """Its name in the pool: `gpu-0`."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """What all containers of one pod hold."""

    namespace: str
    name: str
    plugin: tuple[PluginDevice, ...] = ()
    claimed: tuple[ClaimedDevice, ...] = ()


def decode(answer: bytes) -> list[PodDevices]:
    """The pods of a ListPodResourcesResponse. Cost: tests/exporter/allocation/test_kubelet.py. Raises: ValueError."""
    return [_pod(value) for number, value in _fields(memoryview(answer)) if number == 1]


def _pod(data: memoryview) -> PodDevices:
    namespace = name = ""
    plugin: list[PluginDevice] = []
    claimed: list[ClaimedDevice] = []
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:  # a container
            for kind, inner in _fields(value):
                if kind == 2:
                    plugin.extend(_plugin_devices(inner))
                elif kind == 5:
                    claimed.extend(_claimed_devices(inner))
    # Containers of one pod may share a device: an init container's are handed on.
    return PodDevices(namespace, name, tuple(dict.fromkeys(plugin)), tuple(dict.fromkeys(claimed)))


def _plugin_devices(data: memoryview) -> list[PluginDevice]:
    """Of a ContainerDevices: one resource, its ids."""
    resource, ids = "", []
    for number, value in _fields(data):
        if number == 1:
            resource = _text(value)
        elif number == 2:
            ids.append(_text(value))
    return [PluginDevice(resource, one) for one in ids]


def _claimed_devices(data: memoryview) -> Iterator[ClaimedDevice]:
    """Of a DynamicResource: a claim's devices."""
    for number, value in _fields(data):
        if number == 4:
            texts = {kind: _text(inner) for kind, inner in _fields(value) if kind in (2, 3, 4)}
            yield ClaimedDevice(texts.get(2, ""), texts.get(3, ""), texts.get(4, ""))


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(field number, content) of every field that has a length; numbers are skipped: none of them is of use here."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if not 0 < number <= _MAX_FIELD:
            raise ValueError(f"field number {number}")
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _BYTES:
            length, at = _varint(data, at)
            if length > end - at:
                raise ValueError("a field is longer than its message")
            yield number, data[at : at + length]
            at += length
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
            if at > end:
                raise ValueError("a field is longer than its message")
        else:
            raise ValueError(f"wire type {wire}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    if at < len(data) and (first := data[at]) < 0x80:
        return first, at + 1  # nearly all of them
    value = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a number without an end")
