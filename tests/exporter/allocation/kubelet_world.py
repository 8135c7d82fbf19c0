"""A kubelet as the exporter sees it: a real gRPC server on a unix socket, and PodResources messages written by hand."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc

LIST = "List"


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def block(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def devices(resource: str, *ids: str) -> bytes:
    """A ContainerDevices, with the topology that a real kubelet adds."""
    topology = block(3, block(1, varint(1 << 3) + varint(1)))
    return block(2, block(1, resource) + b"".join(block(2, one) for one in ids) + topology)


def dynamic(driver: str, pool: str, *names: str, claim: str = "gpus") -> bytes:
    """A DynamicResource."""
    found = b"".join(
        block(4, block(1, block(1, f"{driver}/claim={name}")) + block(2, driver) + block(3, pool) + block(4, name))
        for name in names
    )
    return block(5, block(2, claim) + block(3, "team") + found)


def pod(name: str, *held: bytes, namespace: str = "team", containers: int = 1) -> bytes:
    """A PodResources: what is held by its first container, the others with CPUs only."""
    cpus = block(3, b"\x00\x01\x02") + block(4, block(1, "memory") + varint(2 << 3) + varint(1 << 33))
    first = block(3, block(1, "main") + b"".join(held) + cpus)
    others = b"".join(block(3, block(1, f"side-{i}") + cpus) for i in range(containers - 1))
    return block(1, block(1, name) + block(2, namespace) + first + others)


def gpu_pod(name: str, *ids: str, resource: str = "nvidia.com/gpu", namespace: str = "team") -> bytes:
    return pod(name, devices(resource, *ids), namespace=namespace)


@dataclass
class FakeKubelet:
    """Answers List with `pods`; tests change it while it runs."""

    socket: Path
    pods: list[bytes] = field(default_factory=list)
    answer: bytes | None = None
    """Instead of the pods."""
    refuse: tuple[grpc.StatusCode, str] | None = None
    hang: threading.Event | None = None
    """Set: calls wait for it."""
    unsupported: bool = False
    calls: int = 0
    _server: grpc.Server | None = None

    def start(self) -> FakeKubelet:
        self.socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(4))
        handlers = {"Get" if self.unsupported else LIST: grpc.unary_unary_rpc_method_handler(self._list)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
        assert server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        if self.hang is not None:
            self.hang.set()
        if self._server is not None:
            self._server.stop(0).wait(10)
            self._server = None

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        self.calls += 1
        if self.hang is not None:
            self.hang.wait(30)
        if self.refuse is not None:
            context.abort(*self.refuse)
        return b"".join(self.pods) if self.answer is None else self.answer
