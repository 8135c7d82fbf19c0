"""Nodes with what running jobs hold of them."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoker.spec.node import GPUNode
from stoker.spec.rest import NodeList, NodeUsage
from stoker_api.access import access
from stoker_api.bodies import dump, json_response
from stoker_api.identity import LIST_NODES
from stoker_api.jobs.render import joined
from stoker_api.services import services

router = APIRouter(tags=["nodes"])


@router.get("/v1/nodes", response_model=None, responses={200: {"model": NodeList}})
@access(LIST_NODES)
async def list_nodes(request: Request) -> Response:
    """All nodes, by name."""
    found = services(request)
    nodes = sorted(found.deps.nodes.values(), key=lambda node: node.metadata.name)
    used = await found.scheduler.node_usage(node.metadata.name for node in nodes)
    return json_response(
        joined(_with_usage(node, used[name]) for node in nodes if (name := node.metadata.name) in used)
    )


def _with_usage(node: GPUNode, used: NodeUsage) -> bytes:
    return dump(node)[:-1] + b',"usage":' + json.dumps(used.model_dump(by_alias=True)).encode() + b"}"
