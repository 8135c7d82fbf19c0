"""What is said of a job beside its command: keywords of `Client.run`, options of `stoker run` → fields of its spec.

Values are checked by the server, but for the shapes of `elastic` and `data`, which are ours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypedDict

from .errors import BadInput


class JobOptions(TypedDict, total=False):
    """As the options of `stoker run`; what is absent the queue, the runtime or the server decides."""

    queue: str
    priority: int
    preemptible: bool
    gpus: int
    """Per worker."""
    workers: int
    elastic: str
    """With how many workers it may run, as '2:8'."""
    cpu: str
    """Cores per worker."""
    memory: str
    """Per worker, as '16Gi'."""
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    """Variable → the secret of the project that it is given, as NAME or NAME/key."""
    data: Mapping[str, str]
    """Its name within the job → a path here with a '/' (./big), a name of the runtime's, claim:NAME, or a url."""
    image: str
    """On a cluster."""
    runtime: str
    """On a cluster."""
    ttl: str
    """Delete it this long after its end, as '7d'."""
    max_duration: str
    """Stop it after running this long, as '2h'."""
    hold: str
    """Keep a failed worker this long, for `stoker exec`."""


_FIELDS = {name: name for name in ("queue", "priority", "preemptible", "workers", "cpu", "memory", "runtime")}
_FIELDS |= {"gpus": "gpusPerWorker", "ttl": "ttlAfterFinished"}
"""Options that set a field of the spec → the field."""
CLAIM = "claim:"
_PARTS = {"image": ("trainer", "image"), "max_duration": ("stop", "maxDuration"), "hold": ("onFailure", "hold")}
"""Options that set a field of a part of the spec → part and field."""


def apply_options(spec: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Write the options into `spec`; None is as good as absent. Raises: BadInput."""
    for name, field in _FIELDS.items():
        if options.get(name) is not None:
            spec[field] = options[name]
    for name, (part, field) in _PARTS.items():
        if options.get(name) is not None and isinstance(within := spec.get(part) or {}, dict):
            spec[part] = {**within, field: options[name]}
    if options.get("elastic"):
        spec["elastic"] = _elastic(options["elastic"])
        spec.setdefault("workers", spec["elastic"]["max"])
    if options.get("env"):
        spec["env"] = {**(spec.get("env") or {}), **options["env"]}
    if options.get("secrets"):
        refs = {variable: _secret(text) for variable, text in options["secrets"].items()}
        spec["secretEnv"] = {**(spec.get("secretEnv") or {}), **refs}
    if options.get("data"):
        given = [
            one for one in spec.get("data") or [] if not (isinstance(one, dict) and one.get("name") in options["data"])
        ]
        spec["data"] = given + [{"name": name, **_source(text)} for name, text in options["data"].items()]


def secret_name(variable: str) -> str:
    """What the secret of a variable is called where no name is given: wandb-api-key for WANDB_API_KEY."""
    return variable.strip("_").lower().replace("_", "-")


def _secret(text: str) -> dict[str, str]:
    name, slash, key = text.partition("/")
    return {"secret": name, **({"key": key} if slash else {})}


def _source(text: str) -> dict[str, str]:
    if "://" in text:
        return {"url": text}
    if text.startswith(CLAIM):
        return {"claim": text.removeprefix(CLAIM)}
    if "/" in text:
        return {"path": os.path.abspath(os.path.expanduser(text))}  # noqa: PTH100, PTH111 (a link keeps its name)
    return {"path": text}


def _elastic(text: str) -> dict[str, int]:
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal()):
        raise BadInput(f"elastic {text}: write MIN:MAX, for example 2:8")
    return {"min": int(least), "max": int(most)}
