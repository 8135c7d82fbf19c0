"""The worker's token: names its pod, proves it with the report key, opens the workers' report routes only.

`wkr.<podUid>.<hex hmac-sha256(key, podUid)>`. Made by whoever launches workers, checked by `POST /v1/report/progress`.
"""

from __future__ import annotations

from .signed_token import name_in, signed_token

PREFIX = "wkr"


def worker_token(report_key: bytes, pod_uid: str) -> str:
    return signed_token(report_key, PREFIX, pod_uid)


def pod_uid_of(report_key: bytes, token: str) -> str | None:
    """The pod whose token this is; None if it is nobody's."""
    return name_in(report_key, PREFIX, token)
