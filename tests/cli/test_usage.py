"""`stoker usage` and the SDK's calls, against the real api."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from stoker.cli.main import cli
from stoker.cli.usage_text import usage_csv
from stoker.client.client import Client
from stoker.client.errors import ApiError
from stoker.spec.rest import UsageReport, UsageRow
from stoker.spec.usage import GpuReceipt

if TYPE_CHECKING:
    from .live_api import Live

SPEC = {"trainer": {"command": ["python", "train.py"]}, "gpusPerWorker": 1}


def stoker(*args: str) -> Result:
    return CliRunner().invoke(cli, ["usage", *args])


def had(hours: float = 2.0, **more: Any) -> GpuReceipt:
    """Hours of a GPU in the day before now, SM-active for a fifth of them."""
    allocated_s = hours * 3600
    at = float(int(datetime.now(UTC).timestamp()) // 3600 * 3600 - 3600)
    base: dict[str, Any] = {
        "ledger": "l", "node": "n", "uuid": "GPU-0", "job_uid": "u", "attempt": 1, "worker": 0, "project": "default",
        "job_name": "gone", "model": "Tiny", "seq": 1, "begin_at": at - allocated_s, "at": at, "final": True,
        "allocated_s": allocated_s, "busy_s": allocated_s / 2, "sm_active_s": allocated_s / 5, "energy_j": 3.6e6,
        "idle_s": {"no_activity": allocated_s / 4}, "memory_peak_bytes": 1 << 30, "memory_total_bytes": 8 << 30,
    }  # fmt: skip
    return GpuReceipt(**{**base, **more})


def test_sums_as_a_table_csv_and_json(live: Live) -> None:
    live.receipts(had(), had(1.0, job_uid="v", project="vision", job_name="two", uuid="GPU-1"))
    table = stoker()
    assert table.exit_code == 0, table.output
    lines = [line.split() for line in table.stdout.splitlines()]
    assert lines[0][:4] == ["PROJECT", "QUEUE", "USER", "GPU-HOURS"] and "COST EUR" in table.stdout
    assert lines[1] == ["default", "default", "admin", "2.00", "50%", "20%", "25%", "0%", "1.00", "4.00", "1"]
    assert lines[2][:4] == ["vision", "default", "admin", "1.00"]
    assert lines[3] == ["total", "3.00", "50%", "20%", "25%", "0%", "2.00", "6.00", "2"]
    rows = list(csv.DictReader(io.StringIO(stoker("--by", "job", "-o", "csv").stdout)))
    assert [(row["project"], row["job"], row["job_uid"], row["gpu_hours"], row["cost"]) for row in rows] == [
        ("default", "gone", "u", "2.0", "4.0"), ("vision", "two", "v", "1.0", "2.0")
    ]  # fmt: skip
    assert rows[0]["idle_no_activity_hours"] == "0.5" and rows[0]["tensor_active_hours"] == "", "unknown is empty"
    data = json.loads(stoker("--by", "project", "-p", "vision", "-o", "json").stdout)
    assert [row["gpuHours"] for row in data["rows"]] == [1.0] and data["currency"] == "EUR"
    everything = CliRunner().invoke(cli, ["-p", "-", "usage", "--by", "project", "-o", "csv"])
    assert len(everything.stdout.splitlines()) == 3


def test_one_job_with_its_gpus_and_hints_also_when_it_is_gone(live: Live) -> None:
    live.receipts(had())
    shown = stoker("gone")
    assert shown.exit_code == 0, shown.output
    for part in (
        "gone (deleted)",
        "final",
        "2.00 GPU-hours",
        "0.40 GPU-hours (20%)",
        "1Gi of 8Gi",
        "4.00 EUR",
        "GPU-0",
    ):
        assert part in shown.stdout, part
    assert "What to do:" in shown.stdout and "gpu.minMemory of 2Gi" in shown.stdout
    assert json.loads(stoker("gone", "-o", "json").stdout)["usage"]["gpuSeconds"] == 7200.0
    queue = stoker("-q", "default")
    assert "1 of 1 jobs of queue default" in queue.stdout


def test_the_sdk_keeps_every_field_of_every_answer(live: Live) -> None:
    live.gpus()
    live.receipts(had(), had(1.0, attempt=2, uuid="GPU-1"))
    with Client() as client:
        live.event(client.submit(SPEC, name="one"), "Queued")
        job = "/v1/projects/default/jobs/one"
        answers: list[tuple[str, Any]] = [
            ("/version", client.version()),
            ("/v1/whoami", client.whoami()),
            ("/v1/queues", {"items": client.queues()}),
            ("/v1/queues/default", client.queue("default")),
            ("/v1/nodes", {"items": client.nodes()}),
            (job, client.get("one")),
            (f"{job}/explain", client.why("one")),
            (f"{job}/events", {"items": client.past_events("one")}),
            ("/v1/projects/default/jobs/gone/usage", client.job_usage("gone")),
            ("/v1/usage?by=job&queue=default", client.usage(["job"], queue="default")),
        ]
        for path, parsed in answers:
            assert lost(client.calls.wire.call("GET", path).body, ready(parsed)) == [], path


def ready(parsed: Any) -> Any:
    """What the SDK returned, as JSON-ready data."""
    if isinstance(parsed, dict):
        return {name: [ready(item) for item in value] for name, value in parsed.items()}
    return parsed.model_dump(mode="json", by_alias=True)


def lost(sent: Any, kept: Any, path: str = "") -> list[str]:
    """Pointers to fields of an answer that its model does not have."""
    if isinstance(sent, dict):
        missing = [f"{path}/{name}" for name in sent if name not in kept]
        both = [name for name in sent if name in kept]
        return missing + [at for name in both for at in lost(sent[name], kept[name], f"{path}/{name}")]
    if isinstance(sent, list):
        assert len(sent) == len(kept), path
        return [
            at for n, (one, other) in enumerate(zip(sent, kept, strict=True)) for at in lost(one, other, f"{path}/{n}")
        ]
    return []


def test_a_job_without_gpus_is_reported_without_usage(live: Live) -> None:
    with Client() as client:
        client.submit({"trainer": SPEC["trainer"]}, name="cpu")
        client.submit(SPEC, name="waits")
        assert client.job_usage("waits").usage.gpu_seconds == 0.0
        assert client.usage(["day"], since="2d").rows == ()
        with pytest.raises(ApiError) as met:
            client.job_usage("missing")
        assert met.value.status == 404
    assert "usage counts GPUs only" in stoker("cpu").stdout
    assert "no GPU was used from" in stoker().stderr


def test_wrong_options_say_what_there_is(live: Live) -> None:
    assert "--since: works without JOB" in stoker("one", "--since", "1d").stderr
    assert "'colour' is not one of user, queue" in stoker("--by", "colour").stderr
    assert "neither a duration" in stoker("--since", "soon").stderr
    live.receipts(had())
    assert "--by job -o csv" in stoker("gone", "-o", "csv").stderr


def test_what_is_cut_off_is_reported(live: Live) -> None:
    live.receipts(*(had(0.1, job_uid=f"u{n}", job_name=f"j{n}") for n in range(3)))
    shown = stoker("--by", "job", "--limit", "2")
    assert "the first 2 rows" in shown.stderr and shown.stdout.splitlines()[-1].split()[:2] == ["total", "0.30"]


def test_a_name_is_no_formula() -> None:
    at = datetime.now(UTC)
    nothing: dict[str, Any] = {"simulated": False, "jobs": 1, "gpuHours": 0, "idleHours": {}, "unobservedHours": 0}
    rows = tuple(UsageRow.model_validate({**nothing, "unpricedHours": 0, "user": user}) for user in ("=cmd()", 'a"b'))
    report = UsageReport(since=at, until=at, by=("user",), rows=rows, totals=(), truncated=False)
    sent = report.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert [row["user"] for row in csv.DictReader(io.StringIO(usage_csv(sent)))] == ["'=cmd()", 'a"b']
