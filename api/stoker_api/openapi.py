"""The OpenAPI document (3.1), kept in `docs/openapi.json` and compared in a test.

FastAPI writes what it sees in the routes; this adds what the routes do themselves: bodies read raw, bearer tokens,
problem documents by code, and examples. `python -m tools.generate.docs` writes it.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from stoker.spec.code import CodeManifest
from stoker.spec.reports import GpuEventsReport, GpusReport, OwnersQuery, ProgressReport, ReceiptsReport, WorkerReport
from stoker.spec.rest import FileTicketRequest, ProblemDocument, QueuePut, RuntimePut, SecretPut, TicketExchange
from stoker.spec.rest_nodes import NodeCordon, NodeUncordon
from stoker.spec.usage import GpuReceipt
from stoker_api.routes import ROUTERS, api_routes
from stoker_api.routes.common import operation_id

from .access import Access, declared
from .api_examples import Example, examples
from .declared_problems import ANYWHERE, problems_of
from .jobs.clone import CloneRequest, JobPatch
from .jobs.request import Submission
from .problems import MEDIA_TYPE, ProblemCode
from .streams.sse import EVENT_STREAM

_REF = "#/components/schemas/{model}"
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model=ProblemDocument.__name__)}}}
_FASTAPI_DESCRIPTION = "Successful Response"
_DESCRIPTION = "Submit, follow and explain GPU jobs. Errors are problem documents (RFC 9457). See docs/api.md."


@functools.cache
def document() -> dict[str, Any]:
    """The document of all routes. Cost: half a second, once; not for the event loop."""
    routes = [route for router in ROUTERS for route in router.routes]
    found = copy.deepcopy(get_openapi(title="Stoker", version="v1", description=_DESCRIPTION, routes=routes))
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    bodies = (
        Submission, CloneRequest, JobPatch, CodeManifest,
        QueuePut, RuntimePut, NodeCordon, NodeUncordon, SecretPut, WorkerReport, ProgressReport, ReceiptsReport,
        GpuReceipt, OwnersQuery, GpuEventsReport, GpusReport, ProblemDocument, TicketExchange, FileTicketRequest,
    )  # fmt: skip
    _, own = models_json_schema(
        [(model, "validation") for model in bodies],
        by_alias=True,
        ref_template=_REF,
    )
    for name, schema in own["$defs"].items():
        schemas.setdefault(name, schema)
    for schema in schemas.values():
        _without_titles(schema)
    components = found["components"]
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    components["responses"] = {"Problem": {"description": f"Of any request. {_listed(ANYWHERE)}", "content": _PROBLEM}}
    known = examples()
    for route in api_routes():
        if route.include_in_schema:
            for method in (route.methods or set()) - {"HEAD"}:
                operation = found["paths"][route.path_format][method.lower()]
                _complete(operation, route)
                if operation_id(route) not in known:
                    raise LookupError(
                        f"{operation_id(route)} has no example: write one into api/stoker_api/examples.json"
                    )
                _exemplify(operation, known[operation_id(route)])
    return found


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    """What FastAPI does not know of the operation."""
    operation["summary"], operation["description"] = _summary(route.description), _on_lines(route.description)
    operation["security"] = [] if declared(route.endpoint) is Access.OPEN else [{"token": []}]
    for parameter in operation.get("parameters", ()):
        _never_null(parameter["schema"])
        _without_titles(parameter["schema"])
        parameter["schema"].pop("description", None)  # the parameter has its own
    responses = operation["responses"]
    responses.pop("422", None)
    for status, response in responses.items():
        if response["description"] == _FASTAPI_DESCRIPTION:
            response["description"] = HTTPStatus(int(status)).phrase
        if EVENT_STREAM in response.get("content", {}):  # last: it is no answer's usual form
            response["content"][EVENT_STREAM] = response["content"].pop(EVENT_STREAM)
    for status, codes in itertools.groupby(problems_of(route), key=lambda code: code.status):
        responses[str(status)] = {"description": _listed(codes), "content": _PROBLEM}
    responses["default"] = {"$ref": "#/components/responses/Problem"}


def _summary(text: str) -> str:
    """Its first sentence."""
    return _on_lines(text).partition("\n")[0].partition(". ")[0].rstrip(".")


def _on_lines(text: str) -> str:
    """Paragraphs on one line each."""
    return "\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _listed(codes: Iterable[ProblemCode]) -> str:
    return "; ".join(f"{code}: {code.summary}" for code in codes)


def _exemplify(operation: dict[str, Any], example: Example) -> None:
    """Write a request that works, and its answer, into the operation."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in example.parameters:
            parameter["example"] = example.parameters[parameter["name"]]
    if example.body is not None:
        (content,) = operation["requestBody"]["content"].values()
        content["example"] = example.body
    if example.answer is not None:
        content = operation["responses"][str(example.status)]["content"]
        next(iter(content.values()))["example"] = example.answer


def _never_null(schema: dict[str, Any]) -> None:
    """A parameter that may be left out has no null: on the wire that would be a word."""
    if {"type": "null"} in schema.get("anyOf", ()):
        (only,) = [option for option in schema.pop("anyOf") if option != {"type": "null"}]
        schema.update(only)


def _without_titles(schema: Any) -> None:
    """Pydantic's titles repeat the names."""
    if isinstance(schema, list):
        for one in schema:
            _without_titles(one)
    elif isinstance(schema, Mapping):
        if isinstance(schema.get("title"), str):
            del schema["title"]  # type: ignore[attr-defined]
        for one in schema.values():
            _without_titles(one)
