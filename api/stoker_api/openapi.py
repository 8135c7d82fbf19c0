"""The OpenAPI document (3.1), kept in `docs/openapi.json` and compared in a test.

FastAPI writes what it sees in the routes; this adds what the routes do themselves: bodies read raw, bearer tokens,
problem documents. `python -m tools.generate.docs` writes it.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from stoker.spec.code import CodeManifest
from stoker.spec.reports import GpuEventsReport, GpusReport, OwnersQuery, ProgressReport, ReceiptsReport, WorkerReport
from stoker.spec.rest import FileTicketRequest, ProblemDocument, QueuePut, RuntimePut, SecretPut, TicketExchange
from stoker.spec.usage import GpuReceipt
from stoker_api.routes import api_routes

from .access import Access, declared
from .jobs.clone import CloneRequest, JobPatch
from .jobs.request import Submission
from .problems import MEDIA_TYPE

_REF = "#/components/schemas/{model}"
_PROBLEM = {
    "description": "A problem document (RFC 9457)",
    "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model=ProblemDocument.__name__)}}},
}


def document(app: FastAPI) -> dict[str, Any]:
    """The document of an app's routes; made once."""
    if app.openapi_schema:
        return app.openapi_schema
    found = get_openapi(
        title="Stoker",
        version="v1",
        description="Submit, follow and explain GPU jobs. See docs/api.md.",
        routes=app.routes,
    )
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    bodies = (
        Submission, CloneRequest, JobPatch, CodeManifest,
        QueuePut, RuntimePut, SecretPut, WorkerReport, ProgressReport, ReceiptsReport, GpuReceipt,
        OwnersQuery, GpuEventsReport, GpusReport, ProblemDocument, TicketExchange, FileTicketRequest,
    )  # fmt: skip
    _, own = models_json_schema(
        [(model, "validation") for model in bodies],
        by_alias=True,
        ref_template=_REF,
    )
    for name, schema in own["$defs"].items():
        schemas.setdefault(name, schema)
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    opened = {route.path for route in api_routes() if declared(route.endpoint) is Access.OPEN}
    for path, item in found["paths"].items():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                _never_null(parameter["schema"])
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = _PROBLEM
            operation["security"] = [] if path in opened else [{"token": []}]
    app.openapi_schema = found
    return found


def _never_null(schema: dict[str, Any]) -> None:
    """A parameter that may be left out has no null: on the wire that would be a word."""
    if {"type": "null"} in schema.get("anyOf", ()):
        (only,) = [option for option in schema.pop("anyOf") if option != {"type": "null"}]
        schema.update(only)
