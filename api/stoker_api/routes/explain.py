"""Why a job is where it is."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoker.spec.reasons import Explanation
from stoker_api.access import access
from stoker_api.bodies import json_response
from stoker_api.identity import GET_JOB
from stoker_api.problems import Problem, ProblemCode
from stoker_api.services import services

from .common import Name, Project, find_job

router = APIRouter(tags=["jobs"])


@router.get("/v1/projects/{project}/jobs/{name}/explain", response_model=None, responses={200: {"model": Explanation}})
@access(GET_JOB)
async def explain_job(request: Request, project: Project, name: Name) -> Response:
    """The scheduler's own reasons, computed now."""
    found = services(request)
    job = await find_job(found, project, name)
    try:
        explanation = await found.scheduler.explain(job.key, found.deps.clock.now())
    except KeyError:
        raise Problem(
            ProblemCode.UNAVAILABLE, "The job has only just been stored; ask again.", retry_after_s=1
        ) from None
    return json_response(explanation.model_dump_json(by_alias=True, exclude_none=True).encode())
