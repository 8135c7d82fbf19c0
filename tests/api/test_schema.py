"""Requests drawn from the served OpenAPI document, with every kind of token, against objects that are there.

Schemathesis draws and checks; by itself it meets only 404 and 401 (no object, no right), so half of the paths name what
the test made, and DELETE comes last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from stoker.spec.names import LABEL_JOB
from stoker_api.access import Access, declared
from stoker_api.routes import api_routes
from tests.support.examples import examples

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.allow_header_conformance,
]
ORDER = ("GET", "POST", "PUT", "PATCH", "DELETE")
OPEN = {route.path for route in api_routes() if declared(route.endpoint) is Access.OPEN}
FREE = {"cursor", "label", "since", "until", "worker", "attempt"}
"""Query parameters of which the document can't say all."""
EXAMPLES = {"admin": 8, "alice": 2}


@schemathesis.serializer("application/vnd.stoker.pack", "application/octet-stream")
def as_it_is(_context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def calm(case: schemathesis.Case, real: dict[str, str] | None) -> schemathesis.Case:
    """Without what never ends (a followed log), and of objects that are there."""
    (case.query or {}).pop("follow", None)
    for name in list(case.headers or {}):
        if name.lower() in ("accept", "authorization"):
            del case.headers[name]
    case.path_parameters.update({name: value for name, value in (real or {}).items() if name in case.path_parameters})
    return case


def tried(case: schemathesis.Case, base: str, token: str | None, *, valid: bool) -> int:
    given_token = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = case.call(base_url=base, headers={"Accept": "application/json", **given_token}, timeout=30)
    case.validate_response(answer, checks=CHECKS, headers=given_token)
    if valid and case.method == "GET" and FREE.isdisjoint(case.query or {}):
        assert answer.status_code not in (400, 422), f"{case.path} refuses what its schema allows: {answer.text}"
    if token in (None, "stk_garbage") and case.operation.path not in OPEN:
        assert answer.status_code == 401, f"{case.operation.label}: {answer.status_code} without a token"
    return answer.status_code


def drawn(strategy: st.SearchStrategy[Any], many: int, use: Callable[[Any], object]) -> None:
    """Call `use` with so many examples."""

    @seed(1)
    @examples(many, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(example=strategy)
    def run(example: Any) -> None:
        use(example)

    run()


def attack(schema: Any, base: str, tokens: dict[str, str | None], real: dict[str, str]) -> dict[str, set[int]]:
    """The statuses by operation. Raises: ExceptionGroup, all that is wrong."""
    seen: dict[str, set[int]] = {}
    wrong: list[Exception] = []
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in sorted(operations, key=lambda operation: ORDER.index(operation.method.upper())):
        statuses = seen.setdefault(operation.label, set())
        there_is = {**real, "name": "small"} if operation.path.startswith("/v1/queues") else real
        for kind, token in tokens.items():

            def valid(example: Any, token: Any = token, statuses: Any = statuses, there_is: Any = there_is) -> None:
                case, there = example
                statuses.add(tried(calm(case, there_is if there else None), base, token, valid=True))

            try:
                drawn(st.tuples(operation.as_strategy(), st.booleans()), EXAMPLES.get(kind, 1), valid)
            except Exception as error:
                wrong.append(error)
        try:
            negative = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
            drawn(negative, 2, lambda case: tried(calm(case, None), base, tokens["admin"], valid=False))
        except Unsatisfiable:
            pass  # nothing of it can be wrong
        except Exception as error:
            wrong.append(error)
    if wrong:
        raise ExceptionGroup("not as the document says", wrong)
    return seen


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("new_world", ["embedded"], indirect=True)
async def test_what_the_document_allows_is_answered_as_it_says(served, tmp_path):
    job = await served.status(await served.job("one"), phase="Running", attempt=1)
    pod = await served.pod(job)
    await served.logs.append(pod.uid, b"a line\n")
    tokens: dict[str, str | None] = {
        "none": None,
        "garbage": served.keys["garbage"],
        "reader": served.keys["reader"],
        "alice": served.keys["alice"],
        "admin": served.keys["admin"],
        "worker": await served.worker_token(pod),
        "exporter": await served.exporter_token(),
        "scrape": served.deps.identity._tokens.ensure_scraper().read_text().strip(),
    }
    real = {"project": "alpha", "name": job.metadata.labels.get(LABEL_JOB, "one")}
    schema = schemathesis.openapi.from_dict(served.app.openapi())
    seen = await asyncio.to_thread(attack, schema, served.base, tokens, real)
    assert len(seen) == sum(map(len, served.app.openapi()["paths"].values()))
    met = [label for label, statuses in seen.items() if any(status < 400 for status in statuses)]
    assert len(met) > len(seen) // 2, f"refused whatever was tried: {sorted(seen.keys() - met)}"
