"""Every operation's example in the document is sent to a real api, one after the other, and answered as it says.

Runs over the embedded store: what one machine refuses (runtimes, shipped logs) is sent to the same app as a cluster has
it, with runtimes and with logs that workers ship.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema_rs
import pytest

from stoker.controller.render import owned_by, pod_metadata
from stoker.local.store import KINDS
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.pod import PODS, Container, Pod, PodSpec
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.runtime import RUNTIMES
from stoker.store.cache import WatchCache
from stoker_api.access import Access, declared
from stoker_api.api_examples import examples
from stoker_api.app import create_app
from stoker_api.deps import running_caches
from stoker_api.routes import api_routes
from stoker_api.worker_logs.source import WorkerLogSource
from stoker_api.worker_logs.storage import ShippedLogs

from .cluster import node_is_free
from .conftest import BASE, REPORT_KEY, StreamSettings, World, _embedded, exporter_token, job_body, worker_token

ROUTES = {route.name: route for route in api_routes() if route.include_in_schema}
OF_A_CLUSTER = ("put_runtime", "get_runtime", "list_runtimes", "delete_runtime", "report_log", "report_reader")
OWN = {"at", "since", "until", "uid", "jobUid", "podUid", "ticket", "token", "resourceVersion", "version", "traceId"}
"""Fields that are never twice the same."""
JOB = Key("default", "digits-1")


@dataclasses.dataclass
class Stage:
    """The world that the examples speak of, and what only it knows."""

    world: World
    folder: Path
    known: dict[str, str] = dataclasses.field(default_factory=dict)
    """What an example's `uid`, `ticket` or `token` is here, by field."""
    pod: Pod | None = None

    async def job(self) -> TrainingJob:
        return await self.world.store.get(JOBS, JOB)  # type: ignore[no-any-return]

    async def runs(self) -> None:
        """Play operator, node agent and worker."""
        placement = [{"worker": 0, "node": "node-a"}]
        job = await self.world.status(await self.job(), phase="Running", attempt=1, placement=placement)
        spec = PodSpec(containers=(Container(),), node_name="node-a")
        await self.has_pod(Pod(metadata=pod_metadata(job, 0), spec=spec))
        assert self.pod is not None
        output = self.folder / "jobs" / job.uid / "output"
        output.mkdir(parents=True)
        (output / "model.txt").write_text("weights\n")
        await self.world.logs.append(self.pod.uid, b"epoch 1 loss 0.5\n")
        await self.world.event(job, "Placed")
        self.known |= {"jobUid": job.uid, "podUid": self.pod.uid}

    async def ends(self) -> None:
        await self.world.status(
            await self.job(), phase="Failed", placement=[], finishedAt=datetime.now(UTC).isoformat()
        )

    async def secret_again(self) -> None:
        await self.send("put_secret")

    async def reader(self) -> None:
        """The pod that reads a job's files, as the operator makes it."""
        job = TrainingJob.model_validate((await self.world.submit(project="default", who="admin")).json())
        meta = ObjectMeta(name=f"{job.metadata.name}-files", namespace="default", owner_references=(owned_by(job),))
        await self.has_pod(Pod(metadata=meta, spec=PodSpec(containers=(Container(),))))

    async def has_pod(self, pod: Pod) -> None:
        self.pod = await self.world.store.create(PODS, pod)
        await self.world.deps.pods.at_least(self.pod.metadata.resource_version, timeout_s=5)

    async def worker(self, **spec: Any) -> None:
        answer = await self.world.submit(project="default", who="admin", **job_body("one", **spec))
        assert answer.status_code == 201, answer.text
        self.pod = await self.world.pod(TrainingJob.model_validate(answer.json()))

    async def has_code(self) -> None:
        """A worker of a job that names the bundle of the examples."""
        await self.worker(
            trainer={"command": ["python", "train.py"], "code": EXAMPLES["get_code"].parameters["digest"]}
        )

    async def new_file_ticket(self) -> None:
        await self.send("make_file_ticket")

    def token(self, name: str) -> str:
        needed = declared(ROUTES[name].endpoint)
        if needed is Access.WORKER:
            assert self.pod is not None
            return worker_token(REPORT_KEY, self.pod.uid)
        return exporter_token(REPORT_KEY, "node-a") if needed is Access.EXPORTER else self.world.keys["admin"]

    async def send(self, name: str) -> httpx.Response:
        """As a client sends what the document says."""
        example, operation = EXAMPLES[name], operation_of(name)
        method, path, query, headers = method_of(name), ROUTES[name].path_format, {}, {}
        for parameter in operation.get("parameters", ()):
            if "example" in parameter:
                value = str(self._here({parameter["name"]: parameter["example"]})[parameter["name"]])
                match parameter["in"]:
                    case "path":
                        path = re.sub(rf"\{{{parameter['name']}(:path)?\}}", quote(value), path)
                    case "query":
                        query[parameter["name"]] = value
                    case "header":
                        headers[parameter["name"]] = value
        assert "{" not in path, f"{name}: no example of each part of {path}"
        body = None
        if "requestBody" in operation:
            ((media_type, content),) = operation["requestBody"]["content"].items()
            headers["Content-Type"] = media_type
            body = content["example"] if isinstance(content["example"], str) else json.dumps(self._here(example.body))
        if operation["security"]:
            headers["Authorization"] = f"Bearer {self.token(name)}"
        return await self.world.client.request(method, path, params=query, headers=headers, content=body)

    def _here(self, value: Any) -> Any:
        """With what is known here in place of what the document has; times are of now."""
        if isinstance(value, list):
            return [self._here(one) for one in value]
        if not isinstance(value, dict):
            return value
        moments = {"at": time.time(), "beginAt": time.time() - 60}
        return {
            key: self.known.get(key, moments.get(key) if isinstance(one, float) and key in moments else self._here(one))
            for key, one in value.items()
        }


EXAMPLES = examples()
DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
BEFORE: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "report_alive": Stage.runs,
    "report_code": Stage.has_code,
    "retry_job": Stage.ends,
    "delete_secret": Stage.secret_again,
    "read_ticket_file": Stage.new_file_ticket,
    "report_log": Stage.worker,
    "report_reader": Stage.reader,
}


def method_of(name: str) -> str:
    (method,) = ROUTES[name].methods - {"HEAD"}
    return method


def operation_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][ROUTES[name].path_format][method_of(name).lower()]
    return found


@contextlib.asynccontextmanager
async def staged(folder: Path, *, of_a_cluster: bool = False) -> AsyncIterator[Stage]:
    (folder / "logs").mkdir()
    kinds = (*KINDS, RUNTIMES) if of_a_cluster else KINDS
    async with _embedded(folder, StreamSettings(), kinds) as world, contextlib.AsyncExitStack() as stack:
        source = None
        if of_a_cluster:
            source = WorkerLogSource(
                ShippedLogs(folder / "shipped"), world.deps.pods, world.deps.jobs, world.deps.clock
            )
            runtimes = WatchCache(world.deps.store, RUNTIMES, clock=world.deps.clock)
            world.deps = dataclasses.replace(world.deps, logs=source, runtimes=runtimes)
            world.app = create_app(world.deps)
        await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="default")))
        await stack.enter_async_context(running_caches(world.deps))
        await node_is_free(world.deps)
        if source is not None:
            await stack.enter_async_context(source.running())
        await stack.enter_async_context(world.services.running())
        transport = httpx.ASGITransport(world.app, raise_app_exceptions=False)
        world.client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url=BASE))
        yield Stage(world, folder)


def within(said: Any, found: Any, at: str = "") -> list[str]:
    """Where what the document says is not what was answered; it may leave things out."""
    name = at.rpartition("/")[2]
    if isinstance(said, dict) and isinstance(found, dict):
        missing = [f"{at}/{key} is not in the answer" for key in said.keys() - found.keys()]
        return missing + [
            one for key in said.keys() & found.keys() for one in within(said[key], found[key], f"{at}/{key}")
        ]
    if isinstance(said, list) and isinstance(found, list):
        if len(said) != len(found):
            return [f"{at} has {len(found)} entries, not {len(said)}"]
        return [one for n, (a, b) in enumerate(zip(said, found, strict=True)) for one in within(a, b, f"{at}/{n}")]
    of_its_own = name in OWN or name.endswith(("At", "Timestamp", "Time")) or "/times/" in at
    same = type(said) is type(found) if of_its_own else said == found
    return [] if same else [f"{at} is {found!r}, not {said!r}"]


@pytest.mark.parametrize("of_a_cluster", [False, True])
async def test_examples_work(tmp_path, of_a_cluster):
    wrong = []
    async with staged(tmp_path, of_a_cluster=of_a_cluster) as stage:
        for name, example in EXAMPLES.items():
            if (name in OF_A_CLUSTER) is not of_a_cluster:
                continue
            if name in BEFORE:
                await BEFORE[name](stage)
            answer = await stage.send(name)
            if answer.status_code != example.status:
                wrong.append(f"{name}: {answer.status_code}, not {example.status}: {answer.text[:500]}")
            elif isinstance(example.answer, str):
                if example.answer not in answer.text:
                    wrong.append(f"{name}: {example.answer!r} is not in {answer.text[:2000]!r}")
            elif example.answer is not None:
                found = answer.json()
                differs = within(example.answer, found)
                wrong += [f"{name}: {one}" for one in differs]
                if differs:
                    wrong.append(f"{name} was answered {json.dumps(found)[:6000]}")
                stage.known |= {key: found[key] for key in ("ticket",) if key in found}
            elif answer.content:
                wrong.append(f"{name} has an answer, and its example none")
    assert not wrong, "\n".join(wrong)


def test_every_operation_has_one_that_its_schemas_allow():
    assert EXAMPLES.keys() == ROUTES.keys()
    for name, example in EXAMPLES.items():
        operation = operation_of(name)
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] != "path" or "example" in parameter, f"{name}: {parameter['name']}"
        unknown = example.parameters.keys() - {parameter["name"] for parameter in operation.get("parameters", ())}
        assert not unknown, f"{name} has no parameter {unknown}"
        contents = [operation["requestBody"]["content"]] if "requestBody" in operation else []
        contents.append(operation["responses"][str(example.status)].get("content", {}))
        for content in contents:
            for media_type in list(content.values())[:1]:
                assert "example" in media_type, name
                if not isinstance(media_type["example"], str):
                    schema = {**media_type["schema"], "components": DOCUMENT["components"]}
                    jsonschema_rs.Draft202012Validator(schema).validate(media_type["example"])
