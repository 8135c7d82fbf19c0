"""The exporter's token on one machine: names its node, proves it with the report key, opens the exporters' routes only.

`exp.<node>.<hex hmac-sha256(key, "exp.<node>")>`: a worker's proof is of its bare pod uid, so that it is none of a node
called like the pod. Made by `stoker up` for the exporter that it runs, checked by `token_identity.py`.
"""

from __future__ import annotations

from .signed_token import name_in, signed_token

PREFIX = "exp"
_DOMAIN = f"{PREFIX}."


def exporter_token(report_key: bytes, node: str) -> str:
    return signed_token(report_key, PREFIX, node, domain=_DOMAIN)


def node_of(report_key: bytes, token: str) -> str | None:
    """The node whose exporter's token this is; None if it is nobody's."""
    return name_in(report_key, PREFIX, token, domain=_DOMAIN)
