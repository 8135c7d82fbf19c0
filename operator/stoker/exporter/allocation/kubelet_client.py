"""One question to the kubelet: PodResources v1 `List` over its unix socket. grpcio is imported when first asked.

Owns the connection. The socket is made anew at every start of the kubelet, so a call that finds its connection dead is
made once more on a new one. A kubelet that has just started answers before it knows its pods (1.36.3: an empty list for
a second), so a young socket is not asked. Used by one thread.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

from .reasons import Reason

LIST = "/v1.PodResourcesLister/List"
SETTLE_S = 10.0
MAX_ANSWER_BYTES = 256 << 20
"""gRPC's own limit of 4 MiB is passed by a node with many devices and their topology."""


class KubeletError(Exception):
    """The kubelet can't be asked; `reason` says why."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Kubelet:
    """The kubelet behind the socket at `path`; an answer takes `timeout_s` at most.

    settle_s: how old the socket must be to be asked.
    """

    def __init__(self, path: Path, timeout_s: float = 5.0, settle_s: float = SETTLE_S) -> None:
        self._path = path
        self._timeout_s, self._settle_s = timeout_s, settle_s
        self._channel: Any = None

    def list_pods(self) -> bytes:
        """The answer's bytes. Raises: KubeletError."""
        self._check_socket()
        try:
            import grpc
        except ImportError as error:
            raise KubeletError(Reason.GRPCIO_MISSING, f"can't import grpcio: {error}") from None
        was_open = self._channel is not None
        try:
            return self._call(grpc)
        except grpc.RpcError as error:
            self.close()
            if was_open and error.code() is grpc.StatusCode.UNAVAILABLE:
                try:
                    return self._call(grpc)
                except grpc.RpcError as again:
                    self.close()
                    error = again
            raise KubeletError(_reason(error.code().name), f"{error.code().name}: {error.details()}") from None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _call(self, grpc: Any) -> bytes:
        if self._channel is None:
            options = [
                ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
                ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
                ("grpc.default_authority", "localhost"),
                ("grpc.enable_http_proxy", 0),
            ]
            self._channel = grpc.insecure_channel(f"unix:{self._path.absolute()}", options=options)
        call = self._channel.unary_unary(LIST, request_serializer=None, response_deserializer=None)
        answer: bytes = call(b"", timeout=self._timeout_s)
        return answer

    def _check_socket(self) -> None:
        """The causes that gRPC lumps together as UNAVAILABLE. Raises: KubeletError."""
        try:
            found = self._path.stat()
        except PermissionError as error:
            raise KubeletError(Reason.KUBELET_DENIED, str(error)) from None
        except OSError as error:
            raise KubeletError(Reason.KUBELET_SOCKET_MISSING, str(error)) from None
        if not stat.S_ISSOCK(found.st_mode):
            raise KubeletError(Reason.KUBELET_SOCKET_MISSING, f"{self._path} is no socket")
        if not os.access(self._path, os.R_OK | os.W_OK, effective_ids=True):
            raise KubeletError(Reason.KUBELET_DENIED, f"user {os.geteuid()} may not connect to {self._path}")
        age_s = time.time() - found.st_ctime
        if 0 <= age_s < self._settle_s:
            raise KubeletError(Reason.KUBELET_STARTING, f"the kubelet has started {age_s:.0f} s ago")


def _reason(code: str) -> Reason:
    return {
        "UNAVAILABLE": Reason.KUBELET_SOCKET_MISSING,
        "DEADLINE_EXCEEDED": Reason.KUBELET_TIMEOUT,
        "UNIMPLEMENTED": Reason.KUBELET_UNSUPPORTED,
    }.get(code, Reason.KUBELET_FAILED)
