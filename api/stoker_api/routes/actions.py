"""Cancel, suspend, resume, retry: POST without a body, 202 with the job, any number of times."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoker.spec.job import TrainingJob
from stoker_api.access import access
from stoker_api.bodies import json_response
from stoker_api.identity import UPDATE_JOB
from stoker_api.jobs.change import Action
from stoker_api.jobs.render import etag
from stoker_api.services import services

from .common import IfMatch, Name, Project, find_job

router = APIRouter(tags=["jobs"])
_PATH = "/v1/projects/{project}/jobs/{name}/"


@router.post(_PATH + "cancel", status_code=202, response_model=None, responses={202: {"model": TrainingJob}})
@access(UPDATE_JOB)
async def cancel_job(request: Request, project: Project, name: Name, if_match: IfMatch = None) -> Response:
    """Stop the job for good. What has ended stays as it is."""
    return await _act(request, project, name, Action.CANCEL, if_match)


@router.post(_PATH + "suspend", status_code=202, response_model=None, responses={202: {"model": TrainingJob}})
@access(UPDATE_JOB)
async def suspend_job(request: Request, project: Project, name: Name, if_match: IfMatch = None) -> Response:
    """Save and stop the job until it is resumed."""
    return await _act(request, project, name, Action.SUSPEND, if_match)


@router.post(_PATH + "resume", status_code=202, response_model=None, responses={202: {"model": TrainingJob}})
@access(UPDATE_JOB)
async def resume_job(request: Request, project: Project, name: Name, if_match: IfMatch = None) -> Response:
    """Put a suspended job back into its queue."""
    return await _act(request, project, name, Action.RESUME, if_match)


@router.post(_PATH + "retry", status_code=202, response_model=None, responses={202: {"model": TrainingJob}})
@access(UPDATE_JOB)
async def retry_job(request: Request, project: Project, name: Name, if_match: IfMatch = None) -> Response:
    """Run a Failed or Cancelled job again, from its last checkpoint."""
    return await _act(request, project, name, Action.RETRY, if_match)


async def _act(request: Request, project: str, name: str, action: Action, if_match: str | None) -> Response:
    found = services(request)
    before = await find_job(found, project, name)
    job = await found.changer.apply(action, before.key, if_match)
    return json_response(found.renderer.job(job), status=202, headers={"ETag": etag(job)})
