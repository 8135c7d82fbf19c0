"""The RFC 7396 merge patch between two statuses."""

from __future__ import annotations

from typing import Any

from stoker.spec.job import TrainingJobStatus


def status_patch(old: TrainingJobStatus, new: TrainingJobStatus) -> dict[str, Any]:
    """The merge patch that turns `old` into `new`; names and values as in the API.

    The phase is always in it: of a status that was never written the model reads its default, kubectl nothing.
    """
    return {"phase": new.phase.value} | _diff(_plain(old), _plain(new))


def _plain(model: TrainingJobStatus) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _diff(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        former = old.get(name)
        if value == former:
            continue
        patch[name] = _diff(former, value) if isinstance(value, dict) and isinstance(former, dict) else value
    return patch
