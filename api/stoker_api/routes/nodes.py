"""Nodes: listed with their usage and health; closed to new jobs and opened again, whole or GPU by GPU.

Writing is the administrator's. What it sends is kept in the node's GPUNodeHealth; the node itself is never written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from stoker.spec.gpu_health import MAX_TEXT, MOST_GPUS, Cleared, Cordon, GPUNodeHealthSpec
from stoker.spec.job import TrainingJob
from stoker.spec.meta import Key
from stoker.spec.node import GPUNode
from stoker.spec.rest_nodes import NodeCordon, NodeList, NodeUncordon, NodeUsage, NodeWithUsage
from stoker_api.access import Caller, access
from stoker_api.bodies import body_of, json_body, json_response
from stoker_api.body_parsing import parse_body
from stoker_api.declared_problems import refuses
from stoker_api.identity import LIST_NODES, UPDATE_NODE
from stoker_api.jobs.render import joined
from stoker_api.problems import ProblemCode, invalid, not_found
from stoker_api.services import Services, services

from .common import Router, with_usage

log = logging.getLogger(__name__)
router = Router(tags=["nodes"])
_NODE = "/v1/nodes/{name}"
_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
Name = Annotated[str, Path(max_length=253, description="The node's name.", json_schema_extra={"pattern": _NAME})]


@router.get("/v1/nodes", response_model=None, responses={200: {"model": NodeList}})
@access(LIST_NODES)
async def list_nodes(request: Request) -> Response:
    """List the nodes with what running jobs hold of them, by name."""
    found = services(request)
    nodes = sorted(found.deps.nodes.values(), key=lambda node: node.metadata.name)
    used = await found.scheduler.node_usage(node.metadata.name for node in nodes)
    tests = _tests(found, nodes)
    return json_response(
        joined(_described(found, node, used[name], tests) for node in nodes if (name := node.metadata.name) in used)
    )


@router.get(_NODE, response_model=None, responses={200: {"model": NodeWithUsage}})
@access(LIST_NODES)
async def get_node(request: Request, name: Name) -> Response:
    """Read one node with its usage, and what is wrong with its GPUs."""
    return await _shown(services(request), name)


@router.post(
    f"{_NODE}/cordon",
    response_model=None,
    responses={200: {"model": NodeWithUsage}},
    openapi_extra=body_of("NodeCordon"),
)
@access(UPDATE_NODE)
@refuses(ProblemCode.CONFLICT)
async def cordon_node(request: Request, caller: Caller, name: Name) -> Response:
    """Close the node, or one of its GPUs, to new Stoker jobs. Running ones go on; other people's pods are not kept
    off."""
    found = services(request)
    node, asked = _find(found, name), parse_body(NodeCordon, await json_body(request))
    gpu = _uuid(found, node, asked.gpu)
    entry = Cordon(gpu=gpu, reason=asked.reason, by=caller.name[:MAX_TEXT])

    def closed(spec: GPUNodeHealthSpec) -> GPUNodeHealthSpec:
        others = (one for one in spec.cordons if one.gpu != gpu)
        return spec.model_copy(update={"cordons": (*others, entry)[-MOST_GPUS - 1 :]})

    await found.gpu_health.change_spec(node, closed)
    log.warning("node %s: %s cordoned by %s: %s", name, f"GPU {gpu}" if gpu else "all", caller.name, asked.reason)
    return await _shown(found, name)


@router.post(
    f"{_NODE}/uncordon",
    response_model=None,
    responses={200: {"model": NodeWithUsage}},
    openapi_extra=body_of("NodeUncordon"),
)
@access(UPDATE_NODE)
@refuses(ProblemCode.CONFLICT)
async def uncordon_node(request: Request, caller: Caller, name: Name) -> Response:
    """Open the node again; or one of its GPUs, which is then healthy, whatever was wrong with it until now."""
    found = services(request)
    node, asked = _find(found, name), parse_body(NodeUncordon, await json_body(request))
    gpu = _uuid(found, node, asked.gpu)
    cleared = Cleared(gpu=gpu, at=found.deps.clock.now(), by=caller.name[:MAX_TEXT])

    def opened(spec: GPUNodeHealthSpec) -> GPUNodeHealthSpec:
        update: dict[str, object] = {"cordons": tuple(one for one in spec.cordons if one.gpu != gpu)}
        if gpu:
            others = (one for one in spec.cleared if one.gpu != gpu)
            update["cleared"] = (*others, cleared)[-MOST_GPUS:]
        return spec.model_copy(update=update)

    await found.gpu_health.change_spec(node, opened)
    log.warning("node %s: %s uncordoned by %s", name, f"GPU {gpu}" if gpu else "all", caller.name)
    return await _shown(found, name)


def _find(found: Services, name: str) -> GPUNode:
    """Raises: Problem (404)."""
    node = found.deps.nodes.get(Key("", name))
    if node is None:
        raise not_found(f"node {name!r}")
    return node


def _uuid(found: Services, node: GPUNode, named: str) -> str:
    """Of the GPU named by uuid or number; "": none is. Raises: Problem (422)."""
    if not named:
        return ""
    health = found.deps.health.get(node.key)
    known = {gpu.uuid: gpu.index for gpu in node.status.gpus if gpu.uuid}
    known |= {gpu.uuid: gpu.index for gpu in (health.status.gpus if health else ())}
    by_number = {str(number): uuid for uuid, number in known.items()}
    uuid = named if named in known else by_number.get(named)
    if uuid is None:
        listed = ", ".join(sorted(known)) or "none: no exporter has reported its GPUs yet"
        raise invalid("/gpu", f"is no GPU of node {node.metadata.name!r}; known are {listed}")
    return uuid


async def _shown(found: Services, name: str) -> Response:
    node = _find(found, name)
    used = await found.scheduler.node_usage([name])
    return json_response(_described(found, node, used.get(name, NodeUsage()), _tests(found, [node])))


def _tests(found: Services, nodes: Iterable[GPUNode]) -> dict[str, TrainingJob]:
    """The burn-ins that are under way, by the uuid of the GPU."""
    if not any(node.status.sick for node in nodes):
        return {}
    return {test.gpu: job for job in found.index.placed() if (test := job.status.burn_in) is not None}


def _described(found: Services, node: GPUNode, usage: NodeUsage, tests: Mapping[str, TrainingJob]) -> bytes:
    more: dict[str, object] = {}
    if (exporter := found.gpu_health.exporter(node)) is not None:
        more["exporter"] = exporter
    shown = found.gpu_health.burn_ins(node, tests)
    more["burnIns"] = [one.dump() for one in shown]
    return with_usage(node, usage, **more)
