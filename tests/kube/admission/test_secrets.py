"""Which Secrets can be a project's secrets: named and typed so, by any user; no other kind takes such a name."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Admitting

TYPE = "stoker.dev/project-secret"
TOKEN = {"annotations": {"kubernetes.io/service-account.name": "stoker-api"}}


def secret(name: str, kind: str | None, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "alpha", **(metadata or {})}}
    return body if kind is None else {**body, "type": kind}


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (secret("stoker-secret.a", TYPE), ""),
        (secret("a", None), ""),
        (secret("a", "kubernetes.io/service-account-token", TOKEN), ""),
        (secret("stoker-secret.a", None), "type: a Secret whose name begins with stoker-secret."),
        (secret("stoker-secret.a", "kubernetes.io/service-account-token", TOKEN), "type: a Secret whose name"),
        (secret("a", TYPE), "metadata.name: a Secret of type stoker.dev/project-secret is named stoker-secret.NAME"),
    ],
)
def test_a_secret_for_jobs_is_named_and_typed_so(admitting: Admitting, body: dict[str, Any], refused: str) -> None:
    said = admitting.refusal("admin", "create", "-f", "-", "--dry-run=server", stdin=body)
    assert refused in said if refused else not said
