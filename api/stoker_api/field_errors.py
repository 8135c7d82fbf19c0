"""Pydantic's validation errors → faults with JSON pointers and words that help.

Called wherever a model meets a client's data. Never repeats the input: it may hold a secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from stoker.spec.job_parts import Trainer
from stoker.spec.recipes import RECIPES

from .problems import FieldError, Problem, ProblemCode
from .strict_json import parse_json, pointer

M = TypeVar("M", bound=BaseModel)
UNKNOWN_FIELD = "Extra inputs are not permitted"


def parse_body(model: type[M], body: bytes) -> M:
    """The body as `model`, strictly: "3" is no number and 1 is no boolean. Raises: Problem (400, 422)."""
    data = parse_json(body)
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise invalid_fields(error, root=model, data=data) from None


def invalid_fields(error: ValidationError, *, root: type[BaseModel] | None = None, data: Any = None) -> Problem:
    """422 for what pydantic found; `root` (the model) and `data` (the input) serve the suggestions."""
    # Pydantic calls a bad key of a mapping (…, key, "[key]").
    faults = [
        FieldError(pointer(tuple(part for part in fault["loc"] if part != "[key]")), _words(fault, root, data))
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return invalid_problem(faults)


def invalid_problem(faults: Sequence[FieldError]) -> Problem:
    first = faults[0]
    more = f" (and {len(faults) - 1} more, see errors)" if len(faults) > 1 else ""
    return Problem(ProblemCode.INVALID_FIELDS, f"{first.pointer or 'the body'}: {first.detail}{more}", errors=faults)


def parameter_errors(errors: Iterable[Mapping[str, Any]]) -> list[FieldError]:
    """Faults of query, path and header parameters as FastAPI reports them: loc = (place, name, …)."""
    faults = []
    for error in errors:
        place, *rest = error["loc"]
        detail = _words(error, None, None)
        if error["type"] == "extra_forbidden":
            detail = f"there is no {place} parameter {rest[0]!r} here; see docs/api.md for those there are"
        faults.append(FieldError(pointer(tuple(rest)), detail, str(place)))
    return faults


def _words(error: Mapping[str, Any], root: type[BaseModel] | None, data: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    loc: tuple[str | int, ...] = tuple(error["loc"])
    if error["type"] == "missing":
        return "this field is required"
    if message == UNKNOWN_FIELD and loc:
        return _unknown(str(loc[-1]), _names_at(root, data, loc[:-1]))
    if message.startswith("Input should be"):
        return "must be" + message.removeprefix("Input should be")
    return message


def _unknown(name: str, known: list[str]) -> str:
    text = f"there is no field {name!r}"
    if not known:
        return text + " here; take it out"
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"{text}; did you mean {close[0]!r}?"
    return f"{text}; there is: {', '.join(known)}"


def _names_at(root: type[BaseModel] | None, data: Any, path: tuple[str | int, ...]) -> list[str]:
    """The field names of the model that stands at `path` below `root`; [] if there is none."""
    model, here = root, data
    for part in path:
        if isinstance(part, int) or model is None:
            return []
        field = next((f for name, f in model.model_fields.items() if part in (f.alias, name)), None)
        if model is Trainer and part == "config" and isinstance(here, dict):
            model = RECIPES.get(str(here.get("recipe")))
        else:
            model = None if field is None else _model_in(field.annotation)
        here = here.get(part) if isinstance(here, dict) else None
    return [] if model is None else [info.alias or name for name, info in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        found = _model_in(part)
        if found is not None:
            return found
    return None
