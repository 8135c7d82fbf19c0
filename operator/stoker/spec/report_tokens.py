"""Tokens of workers and exporters on one machine: each names its owner and proves it with the report key.

`wkr.<podUid>.<hmac>` opens the workers' report routes only, `exp.<node>.<hmac>` the exporters' only. Nothing is stored.
Made by the node agent and `stoker up`, checked by the api.
"""

from __future__ import annotations

import hashlib
import hmac

WORKER_PREFIX = "wkr"
EXPORTER_PREFIX = "exp"
_EXPORTER_DOMAIN = f"{EXPORTER_PREFIX}."
"""Part of an exporter's proof; a worker's is of its bare pod uid, so that neither passes for the other."""


def worker_token(report_key: bytes, pod_uid: str) -> str:
    return f"{WORKER_PREFIX}.{pod_uid}.{_mac(report_key, pod_uid)}"


def pod_uid_of(report_key: bytes, token: str) -> str | None:
    """The pod whose token this is; None if it is not a worker's."""
    return _name_in(report_key, WORKER_PREFIX, token)


def exporter_token(report_key: bytes, node: str) -> str:
    return f"{EXPORTER_PREFIX}.{node}.{_mac(report_key, _EXPORTER_DOMAIN + node)}"


def node_of(report_key: bytes, token: str) -> str | None:
    """The node whose exporter's token this is; None if it is not an exporter's."""
    return _name_in(report_key, EXPORTER_PREFIX, token, domain=_EXPORTER_DOMAIN)


def _name_in(key: bytes, prefix: str, token: str, *, domain: str = "") -> str | None:
    found, _, rest = token.partition(".")
    name, _, mac = rest.rpartition(".")
    if found != prefix or not name:
        return None
    expected = _mac(key, domain + name)
    return name if hmac.compare_digest(expected.encode(), mac.encode("utf-8", "surrogateescape")) else None


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
