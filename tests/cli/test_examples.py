"""The examples are what the docs and the demo say they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.cli.manifest import read_manifests
from stoker.spec.job import ENDED, Phase, TrainingJobSpec
from stoker.spec.names import API_VERSION
from stoker.spec.quantity import parse_duration
from stoker.spec.recipes import RECIPES
from stoker.spec.worker import Progress
from tests.support.harness import running, until

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_valid_job_that_ends(path: Path) -> None:
    (manifest,) = read_manifests(str(path))
    assert set(manifest.body) == {"apiVersion", "kind", "metadata", "spec"}
    assert (manifest.body["apiVersion"], manifest.body["kind"]) == (API_VERSION, "TrainingJob")
    spec = TrainingJobSpec.model_validate(manifest.body["spec"])
    assert spec.stop.max_duration is not None and parse_duration(spec.stop.max_duration) <= 1200
    if spec.trainer.recipe:
        assert spec.stop.target is not None


def test_all_are_there() -> None:
    specs = {path.name: TrainingJobSpec.model_validate(read_manifests(str(path))[0].body["spec"]) for path in EXAMPLES}
    assert (specs["digits.yaml"].workers, specs["digits.yaml"].total_gpus) == (1, 1)
    assert (specs["mnist-ddp.yaml"].workers, specs["mnist-ddp.yaml"].total_gpus) == (2, 2)
    assert all(specs[f"{name}.yaml"].trainer.recipe == name for name in ("bert", "gpt", "lstm", "resnet", "seq2seq"))
    command = specs["own-script.yaml"].trainer.command
    assert command is not None and (ROOT / command[1]).is_file()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_recipe_learns_on_one_machine(tmp_path: Path) -> None:
    """From its data to the test metric that its example asks for."""
    pytest.importorskip("torch")
    with running(tmp_path / "data", "--virtual-gpus", "2") as server, server.client() as client:
        bodies = {path.stem: read_manifests(str(path))[0].body["spec"] for path in EXAMPLES}
        trained = {name: spec["trainer"]["recipe"] for name, spec in bodies.items() if "recipe" in spec["trainer"]}
        assert set(trained.values()) == set(RECIPES)
        for name in trained:
            client.submit(bodies[name], name=name)
        for name in trained:
            job = client.wait(name, ENDED, 250)
            progress = job.status.progress
            assert job.status.phase is Phase.SUCCEEDED and progress is not None, job.status
            assert progress.summary["timeToTargetS"] is not None, progress.summary


@pytest.mark.torch
@pytest.mark.slow
def test_the_own_script_resumes_where_it_was_saved(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    progress = tmp_path / "progress.json"
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "STOKER_CHECKPOINT_DIR": str(tmp_path / "saved"),
        "STOKER_PROGRESS_FILE": str(progress),
    }

    def run(epochs: int) -> str:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples/own-script/train.py"), "--epochs", str(epochs)],
            env=env, capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip
        return done.stdout

    assert "resumed" not in run(1)
    second = run(2)
    assert second.startswith("resumed after epoch 1\nepoch 2/2")

    found = Progress.model_validate_json(progress.read_text())
    assert (found.step, found.total_steps) == (2, 2)
    assert found.metrics["accuracy"] > 0.8 and found.checkpoint is not None


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("example", "args", "good"),
    [
        ("reinforcement", ("--updates", "30"), lambda progress: progress.metrics["meanReward"] > 80),
        ("diffusion", ("--steps", "150"), lambda progress: progress.metrics["recognised"] > 0.6),
        pytest.param(
            "ddp", ("--steps", "300"), lambda progress: progress.metrics["loss"] < 0.2, marks=pytest.mark.sweep
        ),
    ],
)
def test_a_script_of_another_kind_learns_and_resumes_exactly(
    tmp_path: Path, example: str, args: tuple[str, ...], good: Callable[[Progress], bool]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")

    def start(run: str) -> subprocess.Popen[str]:
        folder = tmp_path / run
        folder.mkdir(exist_ok=True)
        names = ("CHECKPOINT_DIR", "OUTPUT_DIR", "PROGRESS_FILE")
        env = {**os.environ, "OMP_NUM_THREADS": "1", **{f"STOKER_{name}": str(folder / name) for name in names}}
        command = [sys.executable, str(ROOT / "examples" / example / "train.py"), *args]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def progress(run: str) -> Progress | None:
        path = tmp_path / run / "PROGRESS_FILE"
        return Progress.model_validate_json(path.read_text()) if path.exists() else None

    with start("whole") as whole:
        said = whole.communicate(timeout=100)[0].splitlines()[-1]
    assert whole.returncode == 0 and said.startswith("done:")
    reported = progress("whole")
    assert reported is not None and reported.step == reported.total_steps and good(reported), reported
    with start("cut") as cut:
        until(lambda: (seen := progress("cut")) and seen.step > 3, "it trains", 100)
        cut.send_signal(signal.SIGTERM)
        assert cut.wait(60) == 75
    saved = progress("cut")
    assert saved is not None and saved.checkpoint is not None and 3 < saved.checkpoint.step < reported.step
    with start("cut") as again:
        lines = again.communicate(timeout=100)[0].splitlines()
    assert lines[0].startswith("resumed after") and lines[-1] == said
