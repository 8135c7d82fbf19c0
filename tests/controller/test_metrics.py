"""What the operator shows Prometheus, read as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stoker.controller import job_rows
from stoker.controller.counters import LABEL_MAX, label
from stoker.spec.job import JOBS, Phase, TrainingJob
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import ANNOTATION_SUBMITTER
from stoker.spec.outcome import Category
from stoker.spec.queue import QUEUES, Queue, QueueResources
from stoker.spec.reasons import Code

from .test_admission import queue

if TYPE_CHECKING:
    from .conftest import World

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Page:
    """One scrape."""

    def __init__(self, world: World) -> None:
        registry = CollectorRegistry()
        registry.register(world.metrics)
        families = text_string_to_metric_families(generate_latest(registry).decode())
        self.samples = [sample for family in families for sample in family.samples]

    def rows(self, name: str, **labels: str) -> list[Mapping[str, str]]:
        """Labels of the series of this name that have these."""
        return [s.labels for s in self.samples if s.name == name and labels.items() <= s.labels.items()]

    def value(self, name: str, **labels: str) -> float | None:
        """The one value; None: there is no such series."""
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert len(found) < 2, f"{name} {labels} is {len(found)} series"
        return found[0] if found else None


async def submit(world: World, name: str, user: str, **spec: Any) -> TrainingJob:
    meta = ObjectMeta(name=name, namespace="p", annotations={ANNOTATION_SUBMITTER: user})
    return await world.store.create(JOBS, TrainingJob(metadata=meta, spec={"trainer": {"command": ["x"]}} | spec))


async def test_a_running_job_and_its_pods_can_be_joined_and_stay_while_counters_do(world: World) -> None:
    await world.node(gpus=4)
    world.kubelet.script = lambda _pod: None
    job = await submit(world, "gang", "ada@example.org", workers=2, gpus_per_worker=2)
    await world.phase("gang", Phase.RUNNING)
    page = Page(world)
    [info] = page.rows("stoker_job_info")
    assert info == {
        "project": "p", "job_name": "gang", "job_uid": job.uid, "queue": "default", "user": "ada@example.org",
        "phase": "Running",
    }  # fmt: skip
    pods = page.rows("stoker_job_pod_info")
    assert sorted((row["worker"], row["attempt"], row["node"]) for row in pods) == [("0", "1", "n1"), ("1", "1", "n1")]
    assert {(row["job_uid"], row["queue"], row["user"]) for row in pods} == {(job.uid, "default", "ada@example.org")}
    assert {row["pod_uid"] for row in pods} == {pod.uid for pod in world.pods.values()}
    started_at = world.job("gang").status.started_at
    assert started_at is not None
    assert page.value("stoker_job_started_timestamp_seconds", job_uid=job.uid) == pytest.approx(started_at.timestamp())

    await world.change("gang", cancel=True)
    await world.phase("gang", Phase.CANCELLED)
    page = Page(world)
    assert [row["phase"] for row in page.rows("stoker_job_info")] == ["Cancelled"], "exporters still show it"
    assert not page.rows("stoker_job_pod_info") and not page.rows("stoker_job_started_timestamp_seconds")
    await world.store.delete(JOBS, job.key)
    await world.until(lambda: world.jobs.get(job.key) is None, "the job to be gone")
    assert Page(world).rows("stoker_job_info"), "a deleted job's counters want their name too"


async def test_jobs_that_wait_have_no_row_but_their_gpus_and_reasons_count(world: World) -> None:
    await world.node(gpus=2, model="H100")
    await world.store.create(QUEUES, Queue(metadata=ObjectMeta(name="small"), spec={"limit": {"gpus": 6}}))
    world.kubelet.script = lambda _pod: None
    await world.submit("runs", gpus_per_worker=2, queue="small")
    await world.phase("runs", Phase.RUNNING)
    for number in range(3):
        await world.submit(f"waits-{number}", gpus_per_worker=1, queue="small")
    await world.submit("lost", gpus_per_worker=1, queue="nowhere")
    waiting = lambda: [world.job(f"waits-{number}").status.reason for number in range(3)]  # noqa: E731
    await world.until(lambda: waiting() == [Code.NO_CAPACITY] * 3, "their reasons")
    page = Page(world)
    assert [row["job_name"] for row in page.rows("stoker_job_info")] == ["runs"]
    gpus = {
        row["state"]: page.value("stoker_queue_gpus", **row) for row in page.rows("stoker_queue_gpus", queue="small")
    }
    assert gpus == {"allocated": 2, "requested": 3, "limit": 6}
    assert page.value("stoker_queue_gpus", queue="default", state="limit") is None, "no limit is no number"
    assert page.value("stoker_queue_gpus", queue="small", state="borrowed") is None, "no queue has a guarantee"
    await queue(world, "top", guarantee=QueueResources(gpus=1))
    await queue(world, "small", parent="top", limit=QueueResources(gpus=6))
    await world.until(lambda: Page(world).value("stoker_queue_gpus", queue="top", state="borrowed") == 1, "the tree")
    page = Page(world)
    of_top = {
        row["state"]: page.value("stoker_queue_gpus", **row) for row in page.rows("stoker_queue_gpus", queue="top")
    }
    assert of_top == {"allocated": 2, "requested": 3, "guarantee": 1, "borrowed": 1}
    await queue(world, "top", guarantee=QueueResources(gpu_types={"h100": 3}))
    await world.until(lambda: Page(world).value("stoker_queue_gpus", queue="top", state="guarantee") == 3, "the type")
    assert Page(world).value("stoker_queue_gpus", queue="top", state="borrowed") == 0, "within what its type guarantees"
    top_level = page.rows("stoker_queue_gpus", parent="", state="allocated")
    assert sum(page.value("stoker_queue_gpus", **row) or 0 for row in top_level) == 2, "nothing is counted twice"
    assert page.value("stoker_queue_waiting_jobs", queue="small", reason="NoCapacity") == 3
    assert not page.rows("stoker_queue_gpus", queue="nowhere"), (
        "a job may name any queue; series are of those there are"
    )
    await world.change("runs", cancel=True)
    await world.phase("runs", Phase.CANCELLED)
    await world.until(lambda: len(Page(world).rows("stoker_job_info")) == 3, "the next ones to run")
    page = Page(world)
    assert page.value("stoker_queue_gpus", queue="small", state="allocated") == 2
    assert page.value("stoker_queue_gpus", queue="small", state="requested") == 1


async def test_the_part_in_use_of_each_limit_that_a_queue_has(world: World) -> None:
    await world.node(gpus=2, model="H100")
    of_types = {"h100": 8, "a100": 2, "l4": 0}
    await queue(world, "top", limit=QueueResources(gpus=16, cpu="32", memory="1Ti", gpu_types=of_types))
    await queue(world, "small", parent="top", limit=QueueResources(cpu="4"))
    world.kubelet.script = lambda _pod: None
    await world.submit("runs", gpus_per_worker=2, queue="small", cpu="2", memory="256Gi")
    await world.phase("runs", Phase.RUNNING)

    def shares(name: str) -> dict[str, float | None]:
        page, series = Page(world), "stoker_queue_limit_used_ratio"
        return {row["resource"]: page.value(series, **row) for row in page.rows(series, queue=name)}

    wanted = {"gpus": 2 / 16, "cpu": 2 / 32, "memory": 1 / 4, "h100": 2 / 8, "a100": 0}
    await world.until(lambda: shares("top") == wanted, lambda: shares("top"))
    await world.until(lambda: shares("small") == {"cpu": 2 / 4}, lambda: shares("small"))
    assert not shares("default"), "no limit is no number"


async def test_what_is_done_is_counted_where_it_is_done(world: World) -> None:
    await world.node(gpus=1)
    world.kubelet.script = lambda pod: 1 if pod.metadata.name.startswith("bad") else 0
    await world.submit("good", gpus_per_worker=1)
    await world.submit("bad", gpus_per_worker=1)
    await world.phase("good", Phase.SUCCEEDED)
    await world.phase("bad", Phase.FAILED)
    page = Page(world)
    assert page.value("stoker_attempts_ended_total", queue="default", category="Done", intent="None") == 1
    assert page.value("stoker_attempts_ended_total", queue="default", category="UserError", intent="None") == 1
    assert page.value("stoker_gangs_withdrawn_total", queue="default") == 0, "from 0 on, so that the first one shows"
    assert page.value("stoker_queue_wait_seconds_count", queue="default") == 2
    assert page.value("stoker_operator_decisions_total", code="Placed") == 2
    assert page.value("stoker_operator_decisions_total", code="Failed") == 1
    assert (
        page.value("stoker_operator_pass_seconds_count") > 0 and page.value("stoker_operator_reconcile_seconds_sum") > 0
    )
    assert (
        page.value("stoker_job_failures", job_name="bad") == 1
        and page.value("stoker_job_failures", job_name="good") == 0
    )
    assert page.value("stoker_operator_watch_stale_seconds", kind="TrainingJob") == 0
    # Another term of the same process: its counters go on.
    await world.stop()
    world.start()
    await world.submit("more", gpus_per_worker=1)
    await world.phase("more", Phase.SUCCEEDED)
    assert Page(world).value("stoker_attempts_ended_total", category="Done") == 2


async def test_a_gang_that_does_not_start_in_time_is_withdrawn_counted_and_keeps_its_place(world: World) -> None:
    await world.stop()
    world.settings = type(world.settings)(start_timeout_s=0.2, blame_s=0)
    world.start()
    await world.node(gpus=1)
    world.kubelet.starts = False
    created = await world.submit("never", gpus_per_worker=1)
    await world.until(lambda: world.job("never").status.attempts, "the gang to be withdrawn")
    assert world.job("never").status.attempts[0].category is Category.START_TIMEOUT
    assert world.job("never").status.queued_at == created.metadata.creation_timestamp
    world.kubelet.starts = True
    await world.phase("never", Phase.SUCCEEDED)
    page = Page(world)
    assert page.value("stoker_gangs_withdrawn_total", queue="default") == 1
    assert page.value("stoker_attempts_ended_total", intent="Withdraw", category="StartTimeout") == 1
    assert page.value("stoker_queue_wait_seconds_count", queue="default") == 1, (
        "only what came to run has waited for it"
    )


async def test_one_that_does_not_lead_reports_itself_only(world: World) -> None:
    await world.node(gpus=1)
    world.kubelet.script = lambda _pod: None
    await world.submit("a", gpus_per_worker=1)
    await world.phase("a", Phase.RUNNING)
    assert Page(world).rows("stoker_job_info")
    world.leads = False
    page = Page(world)
    assert page.value("stoker_operator_leader") == 0 and page.rows("stoker_operator_cached_objects")
    for name in ("stoker_job_info", "stoker_job_pod_info", "stoker_queue_gpus", "stoker_job_failures"):
        assert not page.rows(name)
    assert page.value("stoker_operator_decisions_total", code="Placed") == 1, "what it did stays counted"


@pytest.mark.parametrize("poison", ['a"b', "line\nline", "back\\slash", "\ud800", "\0", "x" * 10_000, "{}", ""])
async def test_no_label_breaks_the_page(world: World, poison: str) -> None:
    await world.node(gpus=1)
    world.kubelet.script = lambda _pod: None
    job = TrainingJob(metadata=ObjectMeta(name="a", namespace="p", uid="u"), spec={"trainer": {"command": ["x"]}})
    meta = job.metadata.model_copy(update={"annotations": {ANNOTATION_SUBMITTER: poison}})
    status = job.status.model_copy(update={"phase": Phase.RUNNING})
    world.rows._on_job(job_rows.Change(None, job.model_copy(update={"metadata": meta, "status": status})))
    page = Page(world)
    [row] = page.rows("stoker_job_info")
    assert row["user"] == label(poison) and len(row["user"]) <= LABEL_MAX
    assert page.value("stoker_operator_leader") == 1


async def test_a_part_that_cannot_be_read_is_left_out_and_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.rows, "collect", lambda: 1 / 0)
    page = Page(world)
    assert page.value("stoker_operator_leader") == 1 and page.rows("stoker_operator_pass_seconds_count")
    assert page.value("stoker_operator_metrics_errors_total", part="jobs") == 1


async def test_rows_of_jobs_that_left_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_rows, "MOST_LEFT", 3)
    await world.node(gpus=1)
    for number in range(6):
        await world.submit(f"j{number}", gpus_per_worker=1)
        await world.phase(f"j{number}", Phase.SUCCEEDED)
    assert [row["job_name"] for row in Page(world).rows("stoker_job_info")] == ["j3", "j4", "j5"]


async def test_nothing_stays_of_queues_that_only_jobs_named(world: World) -> None:
    for number in range(3):
        await world.submit(f"j{number}", gpus_per_worker=1, queue=f"made-up-{number}")
    await world.until(lambda: len(world.rows._waiting) > 0, "the jobs to be counted")
    for number in range(3):
        await world.change(f"j{number}", cancel=True)
        await world.phase(f"j{number}", Phase.CANCELLED)
    assert not world.rows._waiting and not world.rows._gpus
