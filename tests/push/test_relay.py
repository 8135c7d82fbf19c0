"""The relay over real sockets: whose series are whose, and what workers' pages can't do to the others."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from stoker.push.client import Receiver
from stoker.push.relay import FOREIGN_BYTES, FOREIGN_SERIES, MetricsPage, Relay
from stoker.push.sender import PushOptions
from tests.support.testbed.remote_write import Written, read_request
from tests.support.testbed.webhook import Answer, Webhook

OWN = MetricsPage({"job": "stoker-api", "instance": "here"}, text=b'stoker_job_info{user="alice"} 1\n')
MINE = {"job": "stoker-workers", "project": "vision", "job_name": "mnist", "job_uid": "u1", "worker": "0"}


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], str]]:
    """A page at an address of its own; `b""`: accepts, and never answers."""
    with ExitStack() as stack:

        def start(page: bytes) -> str:
            if not page:
                silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                return f"127.0.0.1:{silent.getsockname()[1]}"

            class Pages(BaseHTTPRequestHandler):
                body: ClassVar[bytes] = page

                def do_GET(self) -> None:
                    allowed = self.headers.get("Authorization", "Bearer t") == "Bearer t"
                    self.send_response(200 if allowed else 401)
                    self.end_headers()
                    self.wfile.write(self.body if self.path == "/metrics" else b"")

                def log_message(self, *_: object) -> None:
                    pass

            server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return f"127.0.0.1:{server.server_address[1]}"

        yield start


async def pushed(
    sources: Sequence[MetricsPage], wanted: Callable[[list[Written]], bool], **labels: str
) -> list[Written]:
    """All that a receiver has when it has what is wanted."""

    async def gather() -> Sequence[MetricsPage]:
        return sources

    with Webhook(lambda _: Answer(204)) as hook:
        relay = asyncio.create_task(Relay(PushOptions(Receiver(hook.url), every_s=0.5, labels=labels), gather).run())

        def written() -> list[Written]:
            return [series for request in list(hook.posted) for series in read_request(request.body)]

        async with asyncio.timeout(30):
            while not wanted(written()):
                await asyncio.sleep(0.05)
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
        return written()


def series(found: list[Written], name: str) -> list[dict[str, str]]:
    return [labels for one in found if (labels := dict(one.labels)).pop("__name__") == name]


def value_of(found: list[Written], **labels: str) -> float | None:
    """The first one's of the series with these labels."""
    return next(one.points[0][1] for one in found if labels.items() <= dict(one.labels).items())


async def test_a_page_gets_its_targets_labels_and_no_name_or_label_of_ours(serve: Callable[[bytes], str]) -> None:
    page = b"""
my_loss{job_uid="victim",instance="x",cluster="other",__name__="y",split="train"} 0.5
my_loss{job_uid="me",split="train"} 0.25
stoker_train_loss{project="other"} 2
stoker_job_gpu_busy_seconds_total{job_uid="victim"} 1e9
stoker:cluster_gpus 0
DCGM_FI_DEV_GPU_UTIL 1
ALERTS{alertname="x"} 1
up{job="stoker-api",instance="here"} 0
scrape_duration_seconds 9
"""
    address = serve(page)
    foreign = MetricsPage(MINE | {"instance": "n1:9464"}, address=address, foreign=True)
    exporter = MetricsPage(
        {"job": "stoker-exporter", "instance": "here"}, address=serve(b"stoker_gpu_up 1\n"), token="t"
    )
    both = {"my_loss", "stoker_gpu_up", "stoker_job_info"}
    found = await pushed(
        [foreign, OWN, exporter], lambda w: both <= {dict(o.labels)["__name__"] for o in w}, cluster="a"
    )
    identity = MINE | {"instance": "n1:9464", "cluster": "a"}
    assert series(found, "my_loss")[0] == identity | {"split": "train"}
    assert series(found, "stoker_train_loss")[0] == identity
    assert value_of(found, __name__="up", instance="n1:9464") == value_of(found, __name__="up", job="stoker-api") == 1
    named = {dict(one.labels)["__name__"] for one in found if dict(one.labels)["job"] == "stoker-workers"}
    assert named == {"up", "my_loss", "stoker_train_loss"}
    assert series(found, "stoker_job_info")[0] == {
        "job": "stoker-api",
        "instance": "here",
        "user": "alice",
        "cluster": "a",
    }
    assert series(found, "stoker_gpu_up")[0]["job"] == "stoker-exporter"
    for one in found:
        moments = [at for at, _ in one.points]
        assert len(moments) == len(set(moments)), "two values of one moment: a receiver refuses the whole request"


@pytest.mark.parametrize(
    "page",
    [b"", b"x" * (FOREIGN_BYTES + 1), b"".join(b"x%d 1\n" % n for n in range(FOREIGN_SERIES + 1)), b"nonsense\n"],
    ids=["never answers", "too long", "too many series", "no metrics"],
)
async def test_a_worker_with_such_a_page_is_down_and_the_others_are_pushed(
    serve: Callable[[bytes], str], page: bytes
) -> None:
    bad = MetricsPage(MINE | {"instance": "bad"}, address=serve(page), foreign=True)
    good = MetricsPage(MINE | {"instance": "good"}, address=serve(b"my_loss 1\n"), foreign=True)
    found = await pushed(
        [bad, good, OWN],
        lambda written: {"my_loss", "stoker_job_info"} <= {dict(o.labels)["__name__"] for o in written},
    )
    assert value_of(found, __name__="up", instance="bad") == 0
    assert value_of(found, __name__="up", instance="good") == 1
    assert {dict(one.labels)["__name__"] for one in found if dict(one.labels).get("instance") == "bad"} == {"up"}
