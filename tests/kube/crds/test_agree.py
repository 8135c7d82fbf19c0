"""Whatever a person may write, the models and the API server agree on it; what both take comes back unchanged."""

from __future__ import annotations

import string
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from stoker.spec.fields import Duration, EnvName, ImageName, LongDuration, Quantity
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.job_parts import Precision
from stoker.spec.meta import Kind
from stoker.spec.names import ENV_NAME, RESERVED_ENV
from stoker.spec.outcome import POLICIES, Category
from stoker.spec.quantity import NEW
from stoker.spec.queue import QUEUES, Queue
from stoker.spec.runtime import RUNTIMES, TrainingRuntime
from tests.support.examples import examples

if TYPE_CHECKING:
    from .conftest import KubeApi

AGREE = examples(75, suppress_health_check=list(HealthCheck))


def fits(kind: type, value: Any) -> bool:
    try:
        TypeAdapter(kind).validate_python(value, context=NEW)
    except ValidationError:
        return False
    return True


def job(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"trainer": {"command": ["true"]}} | spec}


# Texts near the border: made of the pieces that the grammars know, sometimes with a foreign character.
def near(pieces: list[str], most: int = 5) -> st.SearchStrategy[str]:
    piece = st.one_of(st.sampled_from(pieces), st.sampled_from(pieces), st.text(string.printable, max_size=2))
    return st.lists(piece, max_size=most).map("".join)


QUANTITIES = near(["0", "1", "9", "10", ".", "5", "m", "k", "K", "Ki", "M", "Mi", "Gi", "E", "Ei", "e3", "-", "+", " "])
DURATIONS = near(["0", "1", "30", ".5", "0.0", "ms", "s", "m", "h", "d", "w", " ", "-"])
ENV_NAMES = near(["A", "a", "_", "1", "-", ".", "STOKER_", "PET_", "RANK", "STALL_SECONDS", "STOKER_TRACE_FILE"], 3)
IMAGES = near(["a", "A", "r.example", ":5000", "/", "train", ":1.2", "@sha256:", "0" * 64, "-", "_", " "])


@AGREE
@given(text=QUANTITIES)
@example(text="9223372036854775807")
@example(text="9223372036854775806")
@example(text="8Ei")
@example(text="7.99Ei")
@example(text="1\n")
def test_a_quantity(text: str, api: KubeApi) -> None:
    answer = api.create(JOBS, job(memory=text))
    assert answer.taken == fits(Quantity, text), answer.refusals


@AGREE
@given(text=DURATIONS)
@example(text="0.000ms0h")
@example(text="0s1ms")
@example(text="1s\n")
@example(text="3650d")
@example(text="3649d23.5h30m1ms")
@example(text="87600h1ms")
@example(text="9999d")
@example(text="9" * 31 + "s")
def test_a_duration(text: str, api: KubeApi) -> None:
    answer = api.create(JOBS, job(ttlAfterFinished=text))
    assert answer.taken == fits(Duration, text), answer.refusals
    answer = api.create(JOBS, job(idle={"after": text}))
    assert answer.taken == fits(LongDuration, text), answer.refusals


@AGREE
@given(names=st.lists(ENV_NAMES, max_size=3))
@example(names=["RANK"])
@example(names=["A\n"])
def test_names_of_variables(names: list[str], api: KubeApi) -> None:
    answer = api.create(JOBS, job(env=dict.fromkeys(names, "x")))
    assert answer.taken == all(fits(EnvName, name) for name in names), answer.refusals


@AGREE
@given(text=IMAGES)
def test_an_image(text: str, api: KubeApi) -> None:
    answer = api.create(JOBS, job(trainer={"command": ["true"], "image": text}))
    assert answer.taken == fits(ImageName, text), answer.refusals


PATHS = near(["/", "a", "data", "..", ".", ":", "tmp", "/tmp", "/dev/shm", "/var", "stoker", "checkpoints"], 4)


def mostly(good: list[Any], bad: list[Any]) -> st.SearchStrategy[Any]:
    """A value that is fine, and now and then one that is not: a whole spec has about one fault."""
    return st.integers(0, 24).flatmap(lambda drawn: st.sampled_from(bad if drawn == 24 else good))


def either(field: str, values: st.SearchStrategy[Any]) -> tuple[str, st.SearchStrategy[Any]]:
    """A field that is often left out."""
    return field, st.one_of(st.none(), values)


def some(*fields: tuple[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(dict(fields)).map(
        lambda drawn: {field: value for field, value in drawn.items() if value is not None}
    )


LABELS = mostly(["a", "b", "team-a", "x" * 63], ["1a", "A", "", "x" * 64, "a-"])
COMMANDS = some(
    ("command", mostly([["python"], ["python", "", "ü" * 9]], [[], [""], ["x" * 131_073]])),
    either("config", mostly([{}], [{"epochs": 3}])),
    either("image", mostly(["train"], ["a b"])),
    either("workingDir", mostly(["/app", ""], ["x" * 4097])),
    either("recipe", mostly([None], ["image-classification"])),
)
RECIPES = some(
    ("recipe", mostly(["image-classification"], ["gpt-9", ""])),
    either("config", st.sampled_from([{}, {"epochs": 3}, {"model": {"width": 8, "dropout": 0.5}}])),
    either("image", mostly([None], ["train"])),
    either("initFrom", mostly([{"job": "a"}, {"path": "/x", "partly": True}], [{}, {"path": "x"}, {"job": "A"}])),
)
VOLUMES = some(
    ("name", LABELS),
    ("claim", mostly(["c", "c.d"], ["C", ""])),
    either("mountPath", st.one_of(st.sampled_from(["/x", "/data/a", "/x/y"]), PATHS)),
    either("subPath", mostly(["", "x", "x/y"], ["/x", "x/../y", ".."])),
    either("readOnly", st.booleans()),
)
RAISABLE = [category for category in Category if POLICIES[category].raisable]
RETRIES = some(
    ("categories", mostly([RAISABLE[:1], RAISABLE], [[], list(Category), ["Bad"]])),
    ("limit", mostly([0, 100], [-1, 101])),
    either("backoff", mostly(["1s"], ["0s", "x"])),
)
SHARED = [
    either("queue", LABELS),
    either("priority", mostly([0, -1_000_000], [1_000_001])),
    either("workers", mostly([1, 2, 4096], [0, 4097])),
    either("gpusPerWorker", mostly([1, 64], [0, 65])),
    either("cpu", mostly([1, "2", "500m"], ["x", -1])),
    either("sharedMemory", mostly(["1Gi"], ["x", -1])),
    either("env", st.dictionaries(mostly(["A", "b_1", "STOKER_TRACE_FILE"], ["1", "RANK", ""]), st.just("v"))),
    either("runtime", LABELS),
    either("data", st.lists(VOLUMES, max_size=2)),
    either("checkpoint", some(either("keep", mostly([1, 100], [0])), either("claim", LABELS))),
    either(
        "secretEnv",
        st.dictionaries(
            mostly(["A", "B"], ["RANK", "1"]),
            some(("secret", mostly(["a", "b-1"], ["A", ""])), either("key", mostly(["k", "_.k"], ["-k", "", "a b"]))),
            max_size=2,
        ),
    ),
    either("env", st.dictionaries(mostly(["C"], ["A"]), st.just("x"), max_size=1)),
    either("retry", some(either("rules", st.lists(RETRIES, max_size=2)))),
    either("stall", some(either("after", mostly(["1s", "1h30m"], ["0s", "x"])))),
    either(
        "idle",
        some(
            either("after", mostly(["1m", "90s", "1h30m", "2d"], ["59s", "0m", "1d2m"])),
            either("action", mostly(["None", "Suspend"], ["x"])),
        ),
    ),
    either("suspend", st.booleans()),
    either("retryGeneration", mostly([0, 10**9], [-1, 10**9 + 1])),
    either("ttlAfterFinished", mostly(["7d"], ["x"])),
]
TARGETS = some(
    either("metric", mostly(["accuracy"], ["loss", "f1"])),
    ("value", mostly([0.5, 1], [0, 1.5, -1])),
    either("mode", mostly(["max", "min"], ["most"])),
)
SPECS = st.one_of(
    some(
        ("trainer", COMMANDS),
        *SHARED,
        either("precision", mostly(["auto"], ["bf16"])),
        either(
            "stop",
            some(
                either("maxDuration", mostly(["1h"], ["0h"])),
                either("maxSteps", mostly([None], [1])),
                either("exitZeroAfterSignal", mostly(["Succeeded", "Stopped"], ["x"])),
            ),
        ),
        either(
            "gpu",
            some(
                either("minMemory", mostly([None], ["8G"])),
                either("minComputeCapability", mostly([None], ["8.0", "8.10", "0.1"])),
                either("maxPower", mostly([None, 400], [0, 100_001, "400"])),
                either("resource", mostly(["nvidia.com/gpu"], ["nvidia.com/gpu.shared", "nvidia.com/mig-", "cpu"])),
            ),
        ),
    ),
    some(
        ("trainer", RECIPES),
        *SHARED,
        ("gpusPerWorker", mostly([1, 64], [0, 65])),
        either("precision", mostly([*Precision], ["int3"])),
        either(
            "stop",
            some(
                either("maxSteps", mostly([1, 10**12], [0, 10**12 + 1])),
                either("target", TARGETS),
                either(
                    "patience",
                    some(("evaluations", mostly([1, 9], [0, -1])), either("metric", mostly(["loss"], ["f1"]))),
                ),
                either("exitZeroAfterSignal", mostly(["Succeeded"], ["Stopped"])),
            ),
        ),
        either("gpu", some(either("models", mostly([["H100"], []], [[""]])), either("minMemory", st.just("8G")))),
    ),
)


def valid(model: type[TrainingJob | Queue | TrainingRuntime], obj: dict[str, Any]) -> str:
    try:
        model.model_validate(obj, context=NEW)
    except ValidationError as error:
        return str(error)
    return ""


def agree(api: KubeApi, kind: Kind[Any], spec: dict[str, Any]) -> None:
    obj = {"metadata": {"name": "a"}, "spec": spec}
    said = valid(kind.model, obj)
    answer = api.create(kind, obj)
    assert answer.taken == (not said), f"model: {said or 'takes it'}; server: {answer.refusals or 'takes it'}"


@examples(200, AGREE)
@given(spec=SPECS)
def test_a_job(spec: dict[str, Any], api: KubeApi) -> None:
    agree(api, JOBS, spec)


@examples(100, AGREE)
@given(
    spec=some(
        either("image", st.sampled_from(["a", "a b"])),
        either("imagePullPolicy", st.sampled_from(["Always", "Sometimes"])),
        either("pullSecrets", st.lists(st.sampled_from(["a", "b.c", "A"]), max_size=3)),
        either("nodeSelector", st.dictionaries(st.sampled_from(["", "a", "x" * 317]), st.sampled_from(["", "x" * 64]))),
        either("tolerations", st.lists(some(
            either("key", st.sampled_from(["", "a"])),
            either("operator", st.sampled_from(["Exists", "Equal"])),
            either("value", st.sampled_from(["", "v"])),
            either("effect", st.sampled_from(["", "NoExecute", "NoSchedule"])),
            either("tolerationSeconds", st.integers(-1, 1)),
        ), max_size=2)),
        either("sharedMemory", st.sampled_from(["1Gi", "x", 5])),
        either("defaults", some(either("perGpu", some(either("cpu", st.sampled_from(["8", "x"])))))),
        either("extendedResources", st.dictionaries(st.sampled_from(["rdma/hca", ""]), st.integers(0, 1025))),
        either("security", some(
            either("runAsUser", st.integers(0, 2**31)),
            either("fsGroup", st.integers(-1, 1)),
            either("addCapabilities", st.lists(st.sampled_from(["IPC_LOCK", "x", "SYS_NICE"]), max_size=3)),
        )),
        either("checkpoints", some(
            either("claim", st.just("c")), either("template", some(("size", st.sampled_from(["1Gi", "x"]))))
        )),
        either("volumes", st.lists(some(
            ("name", LABELS),
            ("source", st.just({"hostPath": {"path": "/x"}})),
            ("mountPath", st.sampled_from(["/x", ""])),
        ), max_size=2)),
        either("projects", st.lists(LABELS, max_size=2)),
    )
)  # fmt: skip
def test_a_runtime(spec: dict[str, Any], api: KubeApi) -> None:
    agree(api, RUNTIMES, spec)


@examples(60, AGREE)
@given(
    spec=some(
        either("limit", some(
            either("gpus", st.integers(-1, 8)),
            either("cpu", st.sampled_from([8, "8", "x"])),
            either("memory", st.sampled_from(["1Ti", "1T1"])),
        )),
        either("guarantee", some(either("gpus", st.integers(-1, 8)), either("cpu", st.sampled_from(["8", "x"])))),
        either("defaults", some(either("withoutGpus", some(either("memory", st.sampled_from(["8Gi", "x"])))))),
        either("weight", st.sampled_from([0, 1, 3, 10**7, "2"])),
        either("parent", st.sampled_from(["top", "default", "No_Label", ""])),
        either("projects", st.lists(LABELS, max_size=3)),
        either("highestPriority", st.sampled_from([0, 10**6, 10**7])),
        either("discipline", st.sampled_from(["fifo", "las", "FIFO", ""])),
        either("reservationBudget", st.sampled_from([0, 0.5, 100, 100.5, -1, "1"])),
        either("preemption", some(
            either("withinQueue", st.sampled_from(["Never", "LowerPriority", "Any"])),
            either("minRuntime", st.sampled_from(["5m", "0s", "x"])),
        )),
        either("ttlAfterFinished", st.sampled_from(["7d", "0s", "3651d", "x"])),
    )
)  # fmt: skip
def test_a_queue(spec: dict[str, Any], api: KubeApi) -> None:
    agree(api, QUEUES, spec)


@examples(75, AGREE)
@given(spec=SPECS.filter(lambda spec: not valid(TrainingJob, {"metadata": {"name": "a"}, "spec": spec})))
def test_what_a_model_dumps_comes_back_equal(spec: dict[str, Any], api: KubeApi) -> None:
    """As the api writes it, and as the operator reads what someone else wrote."""
    written = TrainingJob.model_validate({"metadata": {"name": "a"}, "spec": spec})
    for body in (written.dump(), {"metadata": {"name": "a"}, "spec": spec}):
        body = {part: body[part] for part in ("metadata", "spec")}
        answer = api.create(JOBS, body | {"metadata": {"name": "a"}})
        assert answer.taken, answer.refusals
        assert TrainingJob.model_validate(answer.object).spec == written.spec


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"trainer": {"recipe": "image-classification", "config": {"epochz": 1}}}, "config is the recipe's own"),
        ({"queue": None, "workers": None, "runtime": None}, "a null is taken for absent"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_only_the_models_refuse(spec: dict[str, Any], why: str, api: KubeApi) -> None:
    """The list of docs/crds.md: from kubectl these jobs are taken, and the operator says Accepted=False or reads on."""
    assert valid(TrainingJob, job(**spec)), why
    assert api.create(JOBS, job(**spec)).taken, why


def test_what_only_the_api_server_refuses(api: KubeApi) -> None:
    assert not valid(TrainingJob, job(cpu=0.5))
    assert "must be of type integer,string" in str(api.create(JOBS, job(cpu=0.5)).refusals)


def test_a_null_is_stored_as_absent_or_as_the_default(api: KubeApi) -> None:
    taken = api.create(JOBS, job(queue=None, runtime=None, gpu=None))
    assert taken.object["spec"]["queue"] == "default"
    assert "runtime" not in taken.object["spec"]
    assert not valid(TrainingJob, taken.object)


def test_reserved_variables_are_names_of_variables() -> None:
    assert all(ENV_NAME.fits(name) for name in RESERVED_ENV)


@examples(60, AGREE)
@given(spec=SPECS.filter(lambda spec: not valid(TrainingJob, {"metadata": {"name": "a"}, "spec": spec})))
def test_writing_back_what_was_read_changes_nothing(spec: dict[str, Any], api: KubeApi, namespace: str) -> None:
    """Or every switch the api sets on kubectl's jobs would break a rule or count as a change of the spec."""
    here = api.within(namespace)
    name = f"j{uuid.uuid4().hex[:8]}"
    created = here.create(JOBS, {"metadata": {"name": name}, "spec": spec}, dry=False).object
    # the first write turns `cpu: 2` into a text, and a target of 1 into 1.0: a change to the API server alone
    otherwise_written = isinstance(spec.get("cpu"), int) or spec.get("stop", {}).get("target", {}).get("value") == 1
    for change, generation in (({}, 1), ({"priority": 77}, 2)):
        dumped = TrainingJob.model_validate(created).dump()
        body = {"metadata": dumped["metadata"], "spec": dumped["spec"] | change}
        answer = here.replace(JOBS, body, dry=False)
        assert answer.taken, answer.refusals
        assert answer.object["metadata"]["generation"] == generation + otherwise_written
        created = answer.object


def test_the_largest_job_is_within_the_cost_of_its_rules(api: KubeApi, namespace: str) -> None:
    here = api.within(namespace)
    spec = {
        "workers": 4096,
        "gpusPerWorker": 64,
        "gpu": {"models": [f"{n:064}" for n in range(16)]},
        "trainer": {"command": ["x" * 500] * 1024, "image": "x" * 512, "workingDir": "/" + "x" * 4095},
        "env": {f"E{n:0255}": "x" * 1000 for n in range(256)},
        "data": [
            {"name": f"{'d' * 61}{n:02}", "claim": "c" * 253, "subPath": "s/" * 512, "mountPath": f"/{n}{'/m' * 510}"}
            for n in range(32)
        ],
        "retry": {"rules": [{"categories": RAISABLE, "limit": 100, "backoff": "1h1m1s"}] * 16},
    }
    created = here.create(JOBS, {"metadata": {"name": "x" * 50}, "spec": spec}, dry=False)
    assert created.taken, created.refusals
    assert not valid(TrainingJob, created.object)
    answer = here.replace(JOBS, created.object | {"spec": created.object["spec"] | {"suspend": True}})
    assert answer.taken, answer.refusals
