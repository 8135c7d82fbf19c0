"""Tickets in place of tokens in a browser's links: for signing in, and for one file."""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Path, Request
from pydantic import JsonValue
from starlette.responses import Response

from stoker.spec.rest import FileTicketRequest, NewTicket, TicketExchange, TicketToken
from stoker_api.access import Access, Caller, access, bearer
from stoker_api.bodies import body_of, dump, json_body, json_response
from stoker_api.body_parsing import parse_body
from stoker_api.declared_problems import FILE, refuses
from stoker_api.identity import GET_FILES
from stoker_api.middleware.limits import Bounds, bounded
from stoker_api.page.tickets import Ticket, WantedFile
from stoker_api.problems import Problem, ProblemCode, not_found
from stoker_api.services import Services, services

from .common import Name, Project, Router, find_job
from .files import OCTETS, FileRequest, sent_file

router = Router(tags=["tickets"])
_SMALL = Bounds(max_body=8192, too_large="a ticket is short")
_SPENT = "The link is used or too old, or was made by a server that has stopped since; {}."
_BYTES: dict[str, JsonValue] = {"schema": {"type": "string", "format": "binary"}}
_FILE: dict[int | str, dict[str, Any]] = {200: {"content": {OCTETS: _BYTES}}}


@router.post("/v1/sign-in-tickets", status_code=201, response_model=None, responses={201: {"model": NewTicket}})
@access(Access.KNOWN)
async def make_sign_in_ticket(request: Request, caller: Caller) -> Response:
    """A ticket that the web page exchanges for the caller's token: good once, for a minute."""
    return _made(services(request), caller.name, bearer(request), None)


@router.post(
    "/v1/sign-in-tickets/exchange",
    response_model=None,
    responses={200: {"model": TicketToken}},
    openapi_extra=body_of("TicketExchange"),
)
@access(Access.OPEN)
@refuses(ProblemCode.TICKET_SPENT, ProblemCode.TOO_MANY_WRONG_TICKETS)
@bounded(_SMALL)
async def exchange_ticket(request: Request) -> Response:
    """The token for which a sign-in ticket stands."""
    wanted = parse_body(TicketExchange, await json_body(request))
    ticket = _taken(request, wanted.ticket, file=False, again="make another with `stoker page`")
    return json_response(dump(TicketToken(token=ticket.token)))


@router.post(
    "/v1/projects/{project}/jobs/{name}/file-tickets",
    status_code=201,
    response_model=None,
    responses={201: {"model": NewTicket}},
    openapi_extra=body_of("FileTicketRequest"),
)
@access(GET_FILES)
@bounded(_SMALL)
async def make_file_ticket(request: Request, caller: Caller, project: Project, name: Name) -> Response:
    """A ticket by which a browser fetches one file of the job: good once, for 30 seconds."""
    found = services(request)
    await find_job(found, project, name)
    wanted = parse_body(FileTicketRequest, await json_body(request))
    return _made(found, caller.name, bearer(request), WantedFile(project, name, wanted.path))


@router.get("/v1/file-tickets/{ticket}", response_model=None, responses=_FILE)
@access(Access.OPEN)
@refuses(*FILE, ProblemCode.NOT_FOUND, ProblemCode.TICKET_SPENT, ProblemCode.TOO_MANY_WRONG_TICKETS)
async def read_ticket_file(
    request: Request, ticket: Annotated[str, Path(max_length=128, description="As it was made for the file.")]
) -> Response:
    """The file for which a ticket stands, whole, if who made the ticket may still read it."""
    found = services(request)
    taken = _taken(request, ticket, file=True, again="fetch the file again")
    identity, file = found.deps.identity, taken.file
    assert file is not None
    principal = await identity.authenticate(taken.token)
    if principal is None or not await identity.may(principal, GET_FILES, file.project):
        raise not_found(f"job {file.job!r} in project {file.project!r}")
    name = quote(file.path.rpartition("/")[2], safe="")
    asked = FileRequest(disposition=f"attachment; filename*=UTF-8''{name}")
    return await sent_file(found, principal.name, file.project, file.job, file.path, asked)


def _made(found: Services, caller: str, token: str, file: WantedFile | None) -> Response:
    ticket, good_s = found.tickets.issue(caller, token, file)
    return json_response(dump(NewTicket(ticket=ticket, good_s=good_s)), status=201)


def _taken(request: Request, secret: str, *, file: bool, again: str) -> Ticket:
    """Raises: Problem (410, 429)."""
    found = services(request)
    address = request.client.host if request.client is not None else ""
    if wait_s := found.wrong_tickets.wait_s(address):
        raise Problem(
            ProblemCode.TOO_MANY_WRONG_TICKETS,
            "Too many wrong tickets came from this address; wait a minute, or paste a token.",
            retry_after_s=math.ceil(wait_s),
        )
    ticket = found.tickets.take(secret, file=file)
    if ticket is None:
        found.wrong_tickets.note(address)
        raise Problem(ProblemCode.TICKET_SPENT, _SPENT.format(again))
    return ticket
