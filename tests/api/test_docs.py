"""docs/api.md names what there is: every route, every problem code."""

from __future__ import annotations

import re
from pathlib import Path

from stoker_api.problems import ProblemCode
from stoker_api.routes import api_routes

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def test_every_route_is_named():
    for route in api_routes():
        tail = route.path_format.replace("/v1/projects/{project}/jobs", "").rpartition("/")[2]
        assert f"/{tail}" in TEXT or tail == "", route.path


def test_every_problem_code_stands_with_its_status():
    table = dict(re.findall(r"^\| (\d{3}) \| (.*?) \|$", TEXT, re.MULTILINE))
    for code in ProblemCode:
        assert re.search(rf"\b{code}\b", table[str(code.status)]), code
