"""The RFC 7396 merge patch between two models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def status_patch(old: BaseModel, new: BaseModel) -> dict[str, Any]:
    """The merge patch that turns `old` into `new`; names and values as in the API. Empty: they are equal."""
    return _diff(_plain(old), _plain(new))


def _plain(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _diff(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        former = old.get(name)
        if value == former:
            continue
        patch[name] = _diff(former, value) if isinstance(value, dict) and isinstance(former, dict) else value
    return patch
