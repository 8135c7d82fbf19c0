"""One table of rules, run through both: the Pydantic models and a real API server refuse and take the same."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from stoker.spec.crd.definition import DEFINITIONS, custom_resource
from stoker.spec.fields import DnsLabel, JobName
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.meta import Kind
from stoker.spec.quantity import NEW
from stoker.spec.queue import QUEUES
from stoker.spec.runtime import RUNTIMES

from .cases import CASES, COMMAND, DATA, IC, RECIPE, Case

if TYPE_CHECKING:
    from .conftest import KubeApi

NAMES: dict[str, TypeAdapter[str]] = {
    JOBS.kind: TypeAdapter(JobName),
    QUEUES.kind: TypeAdapter(DnsLabel),
    RUNTIMES.kind: TypeAdapter(DnsLabel),
}
UPDATES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *(
        (f"{name} is immutable", {}, {name: value}, f"spec.{name} can't be changed once the job exists")
        for name, value in {
            "queue": "other",
            "workers": 2,
            "gpusPerWorker": 1,
            "cpu": 2,
            "memory": "2Gi",
            "sharedMemory": "2Gi",
            "trainer": {"command": ["false"]},
            "env": {"A": "b"},
            "secretEnv": {"A": {"secret": "s"}},
            "runtime": "other",
            "data": [DATA],
            "stop": {"maxDuration": "1h"},
            "checkpoint": {"claim": "c"},
            "retry": {"rules": [{"categories": ["Killed"], "limit": 1}]},
            "onFailure": {"hold": "10m"},
            "stall": {"after": "1h"},
            "idle": {"action": "None"},
            "preemptible": False,
            "ttlAfterFinished": "1d",
        }.items()
    ),
    ("elastic is immutable", {"workers": 2}, {"elastic": {"min": 1, "max": 4}}, "spec.elastic can't be changed"),
    ("topology is immutable", {"workers": 2}, {"topology": {"required": "rack"}}, "spec.topology can't be changed"),
    ("gpu is immutable", {"gpusPerWorker": 1}, {"gpu": {"minMemory": "1Gi"}}, "spec.gpu can't be changed"),
    ("precision is immutable", RECIPE, {"precision": "fp32"}, "spec.precision can't be changed"),
    (
        "config is immutable",
        {"trainer": IC | {"config": {"epochs": 1}}},
        {"trainer": IC | {"config": {"epochs": 2}}},
        "spec.trainer can't be changed",
    ),
    ("another quantity", {"cpu": 2}, {"cpu": "3"}, "spec.cpu can't be changed"),
    ("another runtime", {"runtime": "a"}, {"runtime": "b"}, "spec.runtime can't be changed"),
    (
        "less of GPUs",
        {"gpusPerWorker": 1, "gpu": {"minMemory": "1Gi"}},
        {"gpusPerWorker": 1, "gpu": {"models": ["*H100*"]}},
        "spec.gpu can't be changed",
    ),
    ("suspend, priority, cancel and retryGeneration are switches", {}, {"suspend": True, "priority": 7}, ""),
    ("cancel", {"suspend": True}, {"suspend": False, "cancel": True}, ""),
    ("cancel can't be taken back", {"cancel": True}, {"cancel": False}, "spec.cancel can't be taken back"),
    ("but by a new run", {"cancel": True}, {"cancel": False, "retryGeneration": 1}, ""),
    (
        "retryGeneration grows",
        {"retryGeneration": 2},
        {"retryGeneration": 1},
        "spec.retryGeneration can only be raised",
    ),
    ("a quantity may be written otherwise", {"cpu": 2}, {"cpu": "2", "suspend": True}, ""),
    ("a default may be written out", {}, {"workers": 1, "checkpoint": {"every": "60s"}, "suspend": True}, ""),
    ("config of one key more", {"trainer": IC}, {"trainer": IC | {"config": {"seed": 1}}}, "spec.trainer can't be"),
]


def by_model(kind: Kind[Any], spec: dict[str, Any], name: str = "a") -> str:
    """What the models say against it, or nothing."""
    said = ""
    try:
        kind.model.model_validate({"metadata": {"name": name}, "spec": spec}, context=NEW)
    except ValidationError as error:
        said = str(error)
    try:
        NAMES[kind.kind].validate_python(name)
    except ValidationError as error:
        said += str(error)
    return said


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_models_refuse_and_take(case: Case) -> None:
    assert (case.model_says or case.says) in by_model(case.kind, case.bad, case.name)
    assert by_model(case.kind, case.good) == ""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_api_server_refuses_and_takes_the_same(case: Case, api: KubeApi) -> None:
    answer = api.create(case.kind, {"metadata": {"name": case.name}, "spec": case.bad})
    assert answer.status in (400, 422), answer
    assert any(case.says in refusal for refusal in answer.refusals), answer.refusals
    taken = api.create(case.kind, {"metadata": {"name": "a"}, "spec": case.good})
    assert taken.taken, taken.refusals


@pytest.mark.parametrize(("case", "before", "change", "says"), UPDATES, ids=[update[0] for update in UPDATES])
def test_both_doors_let_the_same_changes_through(
    case: str, before: dict[str, Any], change: dict[str, Any], says: str, api: KubeApi, namespace: str
) -> None:
    old = {"metadata": {"name": "a"}, "spec": COMMAND | before}
    new = {"metadata": {"name": "a"}, "spec": COMMAND | before | change}
    errors = JOBS.update_errors(TrainingJob.model_validate(old), TrainingJob.model_validate(new))
    assert (says in "".join(errors)) if says else errors == [], case

    api = api.within(namespace)
    created = api.create(JOBS, old, dry=False)
    assert created.taken, created.refusals
    new["metadata"] |= {"resourceVersion": created.object["metadata"]["resourceVersion"]}
    answer = api.replace(JOBS, new)
    assert answer.taken == (not says), answer.refusals
    if says:
        said = {next((e for e in errors if refusal.endswith(f": {e}")), refusal) for refusal in answer.refusals}
        assert said == set(errors)


def test_every_sentence_of_the_definitions_is_in_the_table() -> None:
    """A rule without a case here is a rule no one has seen refuse."""
    reported = [case.says for case in CASES] + [update[3] for update in UPDATES if update[3]]
    for definition in DEFINITIONS:
        for sentence in sentences(custom_resource(definition)):
            assert any(says in sentence for says in reported), f"{definition.name}: no case for: {sentence}"


def sentences(schema: Any) -> set[str]:
    found: set[str] = set()
    if isinstance(schema, dict):
        found |= {rule["message"] for rule in schema.get("x-kubernetes-validations", ())}
        schema = list(schema.values())
    if isinstance(schema, list):
        found |= set().union(*(sentences(part) for part in schema)) if schema else set()
    return found


def test_a_whole_job_as_people_write_it_is_taken_by_both(api: KubeApi) -> None:
    spec = yaml.safe_load(
        """
        queue: research
        workers: 2
        gpusPerWorker: 8
        gpu: {models: [H100, H200], minMemory: 80G}
        cpu: 16
        memory: 200Gi
        runtime: rdma
        trainer: {image: registry.example/team/train:1.2, command: [python, train.py], workingDir: /app}
        env: {NCCL_DEBUG: INFO}
        data: [{name: imagenet, claim: imagenet, subPath: v2}]
        stop: {maxDuration: 2d}
        checkpoint: {every: 10m, keep: 3, grace: 2m, claim: research}
        retry: {rules: [{categories: [NodeLost], limit: 20, backoff: 30s}]}
        stall: {after: 30m}
        idle: {after: 1h, action: Suspend}
        ttlAfterFinished: 7d
        """
    )
    obj = {"metadata": {"name": "a"}, "spec": spec}
    assert by_model(JOBS, copy.deepcopy(spec)) == ""
    assert api.create(JOBS, obj).taken
