"""`stoker metrics` and the SDK's call, against the real api."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from stoker.cli.curve_text import curves_csv, sparkline
from stoker.cli.main import cli
from stoker.client.client import Client
from stoker.client.errors import ApiError
from stoker_api.curves.file import Sample
from stoker_api.usage.db import JobFacts

if TYPE_CHECKING:
    from .live_api import Live

GONE = JobFacts("u", "default", "gone", "default", "admin", 0.0)
AT = 1_795_256_199.0


def stoker(*args: str) -> Result:
    return CliRunner().invoke(cli, ["metrics", *args])


def reported(live: Live, *samples: Sample) -> None:
    assert live.deps.curves is not None
    live.do(live.deps.curves.add([(GONE, samples)], lambda uid: False))


@pytest.fixture
def trained(live: Live) -> Live:
    first = [Sample(1, step, AT + step, {"loss": 1 / step, "=cmd()": 1e-9}) for step in range(1, 101)]
    second = [Sample(2, step, AT + 60 + step, {"loss": 1 / step}) for step in range(80, 121)]
    reported(live, *first, *second)
    return live


def test_a_line_for_each_metric_and_attempt(trained: Live) -> None:
    shown = stoker("gone")
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["METRIC", "ATTEMPT", "STEPS", "FIRST", "LOWEST", "HIGHEST", "NEWEST", "CURVE"]
    assert lines[1][:7] == ["=cmd()", "1", "1-100", "1e-09", "1e-09", "1e-09", "1e-09"]
    assert lines[2][:7] == ["loss", "1", "1-100", "1", "0.01", "1", "0.01"]
    assert lines[2][7].startswith("█") and lines[2][7].endswith("▁") and len(lines[2][7]) == 24
    assert lines[3][:4] == ["loss", "2", "80-120", "0.0125"]


def test_the_points_of_one_metric(trained: Live) -> None:
    lines = [line.split() for line in stoker("gone", "--metric", "loss", "--attempt", "1").stdout.splitlines()]
    assert lines[0] == ["ATTEMPT", "STEP", "TIME", "VALUE"] and 10 < len(lines) <= 21
    assert lines[1] == ["1", "1", "2026-11-21", "10:16:40Z", "1"] and lines[-1][1] == "100"
    all_of_them = stoker("gone", "--metric", "loss", "--points", "2000").stdout.splitlines()
    assert len(all_of_them) == 1 + 100 + 41
    late = stoker("gone", "--metric", "loss", "--since", "2026-11-21T10:19:00Z", "--points", "2000").stdout
    assert len(late.splitlines()) == 1 + 40 and "2026-11-21 10:18" not in late


def test_all_digits_for_programs(trained: Live) -> None:
    rows = list(csv.DictReader(io.StringIO(stoker("gone", "-o", "csv").stdout)))
    assert len(rows) == 100 + 141 and rows[0]["metric"] == "'=cmd()", "no formula where the file is opened"
    assert float(next(row for row in rows if row["metric"] == "loss" and row["step"] == "3")["value"]) == 1 / 3
    assert rows[0]["time"] == "2026-11-21T10:16:40Z"
    data = json.loads(stoker("gone", "--metric", "loss", "-o", "json").stdout)
    assert [curve["attempt"] for curve in data["curves"]] == [1, 2] and data["deleted"]


def test_what_is_not_there_is_said(trained: Live) -> None:
    missing = stoker("gone", "--metric", "los")
    assert missing.exit_code == 2 and "'los': nothing was reported; there is =cmd(), loss" in missing.stderr
    assert stoker("nobody").exit_code == 1
    with Client() as client:
        client.submit({"trainer": {"command": ["python", "x.py"]}}, name="quiet")
    quiet = stoker("quiet")
    assert quiet.exit_code == 0 and quiet.stdout == "" and "has reported no metrics" in quiet.stderr
    assert "nor anything else" in stoker("quiet", "--metric", "loss").stderr
    reported(trained, Sample(3, 1, AT + 500, {f"m{n}": 1.0 for n in range(70)}))
    assert "more metrics than the 64" in stoker("gone").stderr


def test_the_sdk_reads_the_same(trained: Live) -> None:
    with Client() as client:
        (one,) = client.metrics("gone", metric="loss", attempt=2, points=2).curves
        assert (one.steps, one.times) == ((80, 120), (AT + 140, AT + 180))
        with pytest.raises(ApiError) as met:
            client.metrics("missing")
    assert met.value.status == 404


@pytest.mark.parametrize(
    ("steps", "values", "drawn"),
    [
        ([1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0], "▁▃▆█"),
        ([5, 5, 5], [1.0, 2.0, 1.0], "▁█▁"),
        ([7], [3.0], "▁"),
        ([], [], ""),
        ([1, 2, 3, 1, 2, 3], [9.0, 9.0, 9.0, 0.0, 0.0, 0.0], "▁▁▁▁▁▁"),
        ([0, 2**53], [-1.7e308, 1.7e308], "▁█"),
    ],
    ids=["rises", "no steps", "one", "none", "steps begin again: the newest counts", "as far as floats go"],
)
def test_a_small_curve(steps: list[int], values: list[float], drawn: str) -> None:
    assert sparkline(steps, values) == drawn


def test_long_curves_take_little_room() -> None:
    assert len(sparkline(range(2000), [float(n % 7) for n in range(2000)])) == 24
    curve: dict[str, Any] = {"metric": "a,b", "attempt": 1, "steps": [1], "times": [0.5], "values": [0.1]}
    assert curves_csv([curve]).splitlines()[1] == '"a,b",1,1,1970-01-01T00:00:00Z,0.1'
