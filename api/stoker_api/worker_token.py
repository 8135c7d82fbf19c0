"""The worker's token: names its pod, proves it with the report key, opens one route only.

`wkr.<podUid>.<hex hmac-sha256(key, podUid)>`. Made by whoever launches workers, checked by `POST /v1/report/progress`.
"""

from __future__ import annotations

import hashlib
import hmac

PREFIX = "wkr"


def worker_token(report_key: bytes, pod_uid: str) -> str:
    return f"{PREFIX}.{pod_uid}.{_mac(report_key, pod_uid)}"


def pod_uid_of(report_key: bytes, token: str) -> str | None:
    """The pod whose token this is; None if it is nobody's."""
    prefix, _, rest = token.partition(".")
    pod_uid, _, mac = rest.rpartition(".")
    if prefix != PREFIX or not pod_uid:
        return None
    expected = _mac(report_key, pod_uid)
    return pod_uid if hmac.compare_digest(expected.encode(), mac.encode("utf-8", "surrogateescape")) else None


def _mac(report_key: bytes, pod_uid: str) -> str:
    return hmac.new(report_key, pod_uid.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
