"""The examples are what the docs and the demo say they are."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.cli.manifest import read_manifests
from stoker.spec.job import ENDED, Phase, TrainingJobSpec
from stoker.spec.names import API_VERSION
from stoker.spec.quantity import parse_duration
from stoker.spec.recipes import RECIPES
from stoker.spec.worker import Progress
from tests.support.fork_server import Forked, ForkServer
from tests.support.harness import free_port, running, until

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
        of = {name: spec["trainer"]["recipe"] for name, spec in bodies.items() if "recipe" in spec["trainer"]}
        assert set(of.values()) == set(RECIPES)
        trained = sorted(of.keys() - {"digits", "mnist-ddp"})  # these: tests/cli/test_demo.py
        for name in trained:
            client.submit(bodies[name], name=name)
        for name in trained:
            job = client.wait(name, ENDED, 250)
            progress = job.status.progress
            assert job.status.phase is Phase.SUCCEEDED and progress is not None, job.status
            assert progress.summary["timeToTargetS"] is not None, progress.summary


class Script:
    """A script of `examples`, forked where torch is imported already."""

    def __init__(self, example: str, args: tuple[str, ...], folder: Path, fork_server: ForkServer) -> None:
        self._path, self._args = ROOT / "examples" / example / "train.py", args
        self._folder, self._fork_server = folder, fork_server

    def start(self, run: str = "run", *args: str) -> Forked:
        """`run`: whose checkpoints and progress it has."""
        folder = self._folder / run
        folder.mkdir(exist_ok=True)
        names = ("CHECKPOINT_DIR", "OUTPUT_DIR", "PROGRESS_FILE")
        env = {**os.environ, "OMP_NUM_THREADS": "1", **{f"STOKER_{name}": str(folder / name) for name in names}}
        argv = [str(self._path), *self._args, *args]
        program = f"sys.argv = {argv}\ntry: runpy.run_path(sys.argv[0], run_name='__main__')"
        program = f"import atexit, runpy, sys\n{program}\nfinally: atexit._run_exitfuncs()"  # it ends by os._exit
        with (folder / "said").open("w") as out:
            return self._fork_server.fork(env, program, out.fileno(), sys.stderr.fileno())

    def said(self, run: str = "run") -> list[str]:
        return (self._folder / run / "said").read_text().splitlines()

    def progress(self, run: str = "run") -> Progress | None:
        path = self._folder / run / "PROGRESS_FILE"
        return Progress.model_validate_json(path.read_text()) if path.exists() else None


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    server = ForkServer("torch", "torch.distributed", "sklearn.datasets", "stoker_job")
    yield server
    server.close()


@pytest.mark.torch
@pytest.mark.slow
def test_the_own_script_resumes_where_it_was_saved(tmp_path: Path, fork_server: ForkServer) -> None:
    script = Script("own-script", (), tmp_path, fork_server)
    assert script.start("run", "--epochs", "1").wait(100) == 0 and "resumed" not in script.said()[0]
    assert script.start("run", "--epochs", "2").wait(100) == 0
    assert script.said()[0] == "resumed after epoch 1" and script.said()[1].startswith("epoch 2/2")
    found = script.progress()
    assert found is not None and (found.step, found.total_steps) == (2, 2)
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
            "ddp", ("--steps", "3000"), lambda progress: progress.metrics["loss"] < 0.2, marks=pytest.mark.sweep
        ),
    ],
)
def test_a_script_of_another_kind_learns_and_resumes_exactly(
    tmp_path: Path, fork_server: ForkServer, example: str, args: tuple[str, ...], good: Callable[[Progress], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("MASTER_PORT", free_port())):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    script = Script(example, args, tmp_path, fork_server)
    assert script.start("whole").wait(100) == 0 and script.said("whole")[-1].startswith("done:")
    reported = script.progress("whole")
    assert reported is not None and reported.step == reported.total_steps and good(reported), reported
    cut = script.start("cut")
    until(lambda: (seen := script.progress("cut")) and seen.step > 3, "it trains", 100)
    cut.send_signal(signal.SIGTERM)
    assert cut.wait(60) == 75
    saved = script.progress("cut")
    assert saved is not None and saved.checkpoint is not None and 3 < saved.checkpoint.step < reported.step
    assert script.start("cut").wait(100) == 0
    lines = script.said("cut")
    assert lines[0].startswith("resumed after") and lines[-1] == script.said("whole")[-1]
