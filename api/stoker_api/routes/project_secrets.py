"""Secrets of a project: set, listed by names and keys, deleted. No route gives a value back."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from stoker.spec.fields import DnsLabel, SecretKey
from stoker.spec.names import DNS_LABEL, SECRET_KEY, SECRET_KEY_MAX
from stoker.spec.rest import ProjectSecret, SecretList, SecretPut
from stoker.store.port import NotFound
from stoker_api.access import access, bearer
from stoker_api.bodies import body_of, dump, json_body, json_response
from stoker_api.body_parsing import parse_body
from stoker_api.identity import DELETE_SECRET, LIST_SECRETS, UPDATE_SECRET
from stoker_api.jobs.render import joined
from stoker_api.ports import Secrets
from stoker_api.problems import Problem, ProblemCode, invalid, not_found
from stoker_api.services import services

from .common import Project, Router

router = Router()

Secret = Annotated[
    str, Path(max_length=63, description="The secret's name.", json_schema_extra={"pattern": DNS_LABEL.anchored})
]
Key = Annotated[
    str,
    Path(
        max_length=SECRET_KEY_MAX,
        description="Which of its values.",
        json_schema_extra={"pattern": SECRET_KEY.anchored},
    ),
]
_NAME: TypeAdapter[str] = TypeAdapter(DnsLabel)
_KEY: TypeAdapter[str] = TypeAdapter(SecretKey)


@router.get(
    "/v1/projects/{project}/secrets", tags=["secrets"], response_model=None, responses={200: {"model": SecretList}}
)
@access(LIST_SECRETS)
async def list_secrets(request: Request, project: Project) -> Response:
    """The project's secrets: their keys, and when they changed. Their values are shown to no one."""
    found = await _secrets(request).listed(bearer(request), project)
    return json_response(joined(dump(secret) for secret in found))


@router.put(
    "/v1/projects/{project}/secrets/{secret}/{key}",
    tags=["secrets"],
    response_model=None,
    responses={200: {"model": ProjectSecret}, 201: {"model": ProjectSecret, "description": "Created"}},
    openapi_extra=body_of("SecretPut"),
)
@access(UPDATE_SECRET)
async def put_secret(request: Request, project: Project, secret: Secret, key: Key) -> Response:
    """Set one value of a secret. Jobs that wait for it start within two minutes; running ones keep what they have."""
    for kind, name, at in ((_NAME, secret, "/secret"), (_KEY, key, "/key")):
        try:
            kind.validate_python(name)
        except ValidationError as error:
            raise invalid(at, error.errors()[0]["msg"].removeprefix("Value error, "), place="path") from None
    wanted = parse_body(SecretPut, await json_body(request))
    try:
        shown, created = await _secrets(request).put(bearer(request), project, secret, key, wanted.value)
    except NotFound:
        raise not_found(f"project {project!r}") from None
    return json_response(dump(shown), status=201 if created else 200)


@router.delete("/v1/projects/{project}/secrets/{secret}", tags=["secrets"], status_code=204, response_model=None)
@access(DELETE_SECRET)
async def delete_secret(request: Request, project: Project, secret: Secret) -> Response:
    """Delete a secret with all its values. Jobs that name it and have not started wait."""
    return await _deleted(request, project, secret, None)


@router.delete("/v1/projects/{project}/secrets/{secret}/{key}", tags=["secrets"], status_code=204, response_model=None)
@access(DELETE_SECRET)
async def delete_secret_key(request: Request, project: Project, secret: Secret, key: Key) -> Response:
    """Delete one value of a secret; with the last one the secret goes."""
    return await _deleted(request, project, secret, key)


async def _deleted(request: Request, project: str, secret: str, key: str | None) -> Response:
    try:
        await _secrets(request).delete(bearer(request), project, secret, key)
    except NotFound:
        raise not_found(
            f"secret {secret!r}{'' if key is None else f' with key {key!r}'} in project {project!r}"
        ) from None
    return Response(status_code=204)


def _secrets(request: Request) -> Secrets:
    found = services(request).deps.secrets
    if found is None:
        raise Problem(ProblemCode.NOT_FOUND, "This server keeps no secrets.")
    return found
