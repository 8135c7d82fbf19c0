"""What `stoker why` says of a failure: what the retry rules did, and what the cause points to."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from stoker.spec.job import AttemptEnd, Phase, TrainingJob, TrainingJobStatus
from stoker.spec.meta import ObjectMeta
from stoker.spec.outcome import Category
from stoker.why.failure_hints import failure_hints

CODE = "sha256:" + "0" * 64


def failed(message: str, category: Category | None = Category.USER_ERROR, retries: int = 0, **spec: Any) -> TrainingJob:
    end = AttemptEnd(number=1, ended_at=datetime(2026, 1, 1, tzinfo=UTC), category=category, message=message)
    return TrainingJob(
        metadata=ObjectMeta(name="j", namespace="p", uid="u"),
        spec={"trainer": {"command": ["python", "train.py"]}} | spec,  # type: ignore[arg-type]
        status=TrainingJobStatus(phase=Phase.FAILED, attempts=(end,), retries={category: retries} if category else {}),
    )


def said(*given: Any, **spec: Any) -> list[str]:
    return [hint.message for hint in failure_hints(failed(*given, **spec))]


@pytest.mark.parametrize(
    ("message", "spec", "says"),
    [
        ("exit 1: torch.OutOfMemoryError: CUDA out of memory. Tried", {}, "a smaller batch"),
        ("exit 1: ModuleNotFoundError: No module named 'einops.layers'", {}, "module einops.layers is not in the env"),
        (
            "exit 1: No module named 'einops'",
            {"trainer": {"command": ["x"], "image": "r.example/t:1"}},
            "is not in the image r.example/t:1",
        ),
        (
            "exit 1: FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'",
            {"trainer": {"command": ["x"], "code": CODE}},
            "data/train.bin is looked up in the job's copy of the code",
        ),
        ("exit 1: No such file or directory: '/mnt/x'", {}, "/mnt/x is not there for the worker"),
        ("exit 1: No such file or directory: 'x'", {}, "x is looked up in the worker's working folder"),
        ("exit 1: RuntimeError: No CUDA GPUs are available", {}, "the job asks for no GPU: --gpus 1"),
        ("exit 1: RuntimeError: No CUDA GPUs are available", {"gpusPerWorker": 1}, "simulated ones are slots"),
        ("exit 1: MisconfigurationException: No supported gpu backend found!", {}, "the job asks for no GPU"),
        ("exit 1: RuntimeError: CUDA error: invalid device ordinal", {"gpusPerWorker": 2}, "it has 2 (--gpus)"),
        ("exit 1: jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating", {}, "a smaller batch"),
        ("exit 1: CUDA error: no kernel image is available for execution", {}, "not built for this GPU"),
        ("exit 1: The NVIDIA driver on your system is too old (found 11040)", {}, "driver is older"),
        ("exit 1: torch.distributed.DistBackendError: NCCL error in: x.cpp", {}, "NCCL_DEBUG=INFO"),
        ("exit 1: OSError: [Errno 98] Address already in use", {}, "MASTER_PORT"),
        ("exit 1: OSError: [Errno 28] No space left on device", {}, "is full"),
    ],
)
def test_a_cause_has_a_hint(message: str, spec: dict[str, Any], says: str) -> None:
    retried, hint = said(message, **spec)
    assert says in hint and len(hint) < 400
    assert retried == "the category is UserError: not retried; a rule in spec.retry can change that"


LEFT_OUT = [{"path": "src/data/", "by": ".gitignore:1"}, {"path": "runs/", "by": ".gitignore:2"}]


@pytest.mark.parametrize(
    ("text", "working_dir", "says"),
    [
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'src/data/train.bin'",
            None,
            "src/data/ was left out",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'", "src", "src/data/ was left out"),
        (
            "FileNotFoundError: ./runs not found",
            None,
            "runs/ was left out by .gitignore:2: give it as data (--data NAME=./runs/,",
        ),
        ("No such file or directory: '../runs/a'", "src", "runs/ was left out"),
        ("FileNotFoundError: Couldn't find any data at /stoker/run/code/runs", None, "runs/ was left out"),
        ("cat: runs/a: No such file or directory", None, "runs/ was left out"),
        ("No such file or directory: '/mnt/runs/a'", None, "/mnt/runs/a is not there for the worker"),
        ("No such file or directory: 'runs2/a'", None, "runs2/a is looked up in the job's copy"),
        ("ValueError: runs/a is empty", None, ""),
    ],
)
def test_a_missing_path_that_was_left_out_is_named_with_its_rule(text: str, working_dir: str, says: str) -> None:
    trainer = {"command": ["x"], "code": CODE, "leftOut": LEFT_OUT, "workingDir": working_dir}
    _, *hints = said(f"exit 1: {text}", trainer=trainer)
    assert says in "".join(hints) and bool(hints) is bool(says)


def test_what_is_reported_as_left_out_is_only_a_name() -> None:
    for evil in ("/", "a\x1b[2J", "a\x00", "(" * 256, "../" * 85, ".*"):
        trainer = {
            "command": ["x"],
            "code": CODE,
            "leftOut": [{"path": evil, "by": "\n"}, {"path": evil, "by": "x"}] * 16,
        }
        hints = said(f"No such file or directory: '{evil}'" + " (" * 500, trainer=trainer)
        assert all(line.isprintable() and len(line) < 700 for line in hints)


def test_what_the_retry_rules_did_is_reported_and_nothing_is_guessed() -> None:
    assert said("exit 1: ValueError: bad shape 3x4") == [
        "the category is UserError: not retried; a rule in spec.retry can change that"
    ]
    rule = {"retry": {"rules": [{"categories": ["UserError"], "limit": 1}]}}
    assert said("exit 1", Category.USER_ERROR, 1, **rule) == ["the category is UserError: 1 of 1 retries were made"]
    assert said("x", Category.DIVERGED) == [
        "the category is Diverged: it is never retried, as the same would happen again"
    ]
    killed = said("signal 9", Category.KILLED, 3, memory="2Gi")
    assert "3 of 3 retries" in killed[0] and "more than 2Gi" in killed[1]
    assert said("x", None) == []


def test_a_programs_last_line_costs_nothing_and_is_not_repeated_at_length() -> None:
    began = time.monotonic()
    missing = "No such file or directory: '"
    for evil in ("No module named " + "a" * 10**6, missing * 10**5, "'" * 10**6, missing + "\x1b[2J'"):
        assert all(len(line) < 500 and line.isprintable() for line in said(evil))
    assert time.monotonic() - began < 2
