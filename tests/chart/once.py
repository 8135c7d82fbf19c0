"""What an installation consists of, rendered once for all tests that only look."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from tools.chart import rendering


def objects(values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Not to be changed."""
    return _objects(json.dumps(values or {}))


def text(values: Mapping[str, Any]) -> str:
    return _text(json.dumps(values))


def of_kind(values: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in objects(values) if one["kind"] == kind]


def workloads(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What makes pods that stay."""
    return [one for one in objects(values) if one["kind"] in ("Deployment", "DaemonSet")]


def container(values: Mapping[str, Any], component: str) -> dict[str, Any]:
    """The one container of a Deployment or DaemonSet."""
    [found] = [
        container
        for one in workloads(values)
        for container in one["spec"]["template"]["spec"]["containers"]
        if container["name"] == component
    ]
    return found


@functools.cache
def _text(values: str) -> str:
    return rendering.rendered(json.loads(values))


@functools.cache
def _objects(values: str) -> list[dict[str, Any]]:
    return rendering.parsed(_text(values))
