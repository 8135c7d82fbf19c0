"""`make demo`: real models trained on this machine through the whole chain, shown live, and what came out.

Owns the demo's server and data folder (`.stoker/demo`, a fresh one per run, kept afterwards so that checkpoints stay
where the table says). Uses nothing of Stoker but its client and command. Leaves nothing running, however it ends. Exit
code 1 if a job failed or read fewer than 97 % of the test images right.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.cli.board import Board, open_board
from stoker.cli.feed import Feed
from stoker.cli.job_text import explanation_text
from stoker.cli.manifest import read_manifests
from stoker.cli.output import DASH, Column, table
from stoker.client.client import Client
from stoker.client.errors import StokerError
from stoker.client.updates import JobChanged
from stoker.spec.job import ENDED, PLACED, Phase, TrainingJob
from stoker.spec.quantity import format_duration

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("STOKER_DEMO_DATA", ROOT / ".stoker" / "demo"))
SERVER_LOG = "up.log"
GPUS = 2
GOAL = 0.97
LONGEST_S = 600
EXAMPLES = {
    "digits": "examples/digits.yaml",
    "own-script": "examples/own-script.yaml",
    "mnist-ddp": "examples/mnist-ddp.yaml",
}


class DemoFailed(Exception):
    """What went wrong, for people."""


@dataclass
class Seen:
    """The newest of each job, and when it first reached the goal."""

    jobs: dict[str, TrainingJob] = field(default_factory=dict)
    reached_s: dict[str, float] = field(default_factory=dict)
    explained: bool = False

    def take(self, job: TrainingJob) -> None:
        name = job.metadata.name
        self.jobs[name] = job
        accuracy = _accuracy(job)
        began, progress = job.status.started_at, job.status.progress
        if name not in self.reached_s and accuracy is not None and accuracy >= GOAL and began and progress:
            self.reached_s[name] = max(0.0, progress.at - began.timestamp())


def main() -> int:
    began = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # however it is stopped, it cleans up
    if DATA.exists() and any(DATA.iterdir()) and not (DATA / SERVER_LOG).exists():
        print(f"demo: {DATA} is no folder of an earlier demo; nothing is done to it", file=sys.stderr)
        return 2
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True, mode=0o700)
    for name in ("STOKER_SERVER", "STOKER_TOKEN", "STOKER_PROJECT"):
        os.environ.pop(name, None)
    os.environ["STOKER_HOME"] = str(DATA)
    server = _start_server()
    seen = Seen()
    try:
        with _ready(server) as client:
            print(f"stoker up is ready at {client.endpoint.url} after {time.monotonic() - began:.1f} s")
            print(f"  {_offer(client)}\n")
            for name, path in EXAMPLES.items():
                _submit(client, name, path)
            print()
            _watch(client, server, seen)
            good = _summary(client, seen)
    except KeyboardInterrupt:
        print("\ninterrupted; stopping the jobs and the server", file=sys.stderr)
        return 130
    except (DemoFailed, StokerError) as error:
        print(f"\ndemo: {error}\n{_log_tail()}", file=sys.stderr)
        return 1
    finally:
        _stop(server)
    print(f"\n{'demo done' if good else 'demo FAILED'} in {time.monotonic() - began:.1f} s")
    return 0 if good else 1


# The server


def _start_server() -> subprocess.Popen[bytes]:
    """`stoker up` in a session of its own, so that Ctrl-C reaches us and we stop it in order."""
    cores = max(GPUS, os.cpu_count() or 1)
    command = ["up", "--data", str(DATA), "--port", str(_free_port())]
    command += ["--virtual-gpus", str(GPUS), "--cpus", str(cores)]
    print(f"$ stoker {' '.join(command).replace(str(ROOT) + '/', '')}")
    with (DATA / SERVER_LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "stoker.cli.main", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            start_new_session=True,
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ready(server: subprocess.Popen[bytes]) -> Client:
    """A client, once the server answers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DemoFailed(f"stoker up ended with exit code {server.returncode}")
        if (DATA / "endpoint.json").exists():
            client = Client()
            try:
                client.whoami()
                if any(node.status.ready for node in client.nodes()):
                    return client
            except StokerError:
                pass
            client.close()
        time.sleep(0.05)
    raise DemoFailed("stoker up was not ready after 60 s")


def _offer(client: Client) -> str:
    gpus = [gpu for node in client.nodes() for gpu in node.status.gpus]
    simulated = sum(gpu.simulated for gpu in gpus)
    return f"{len(gpus)} GPUs, {simulated} of them simulated: jobs get them one by one, but compute on the CPU"


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the jobs, then the server, then whatever of this demo's is still there."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave anything running
    if server.poll() is None:
        try:
            with Client(timeout=5) as client:
                unfinished = [job.metadata.name for job in client.ls() if job.status.phase not in ENDED]
                for name in unfinished:
                    client.cancel(name)
                for name in unfinished:
                    client.wait(name, ENDED, timeout=15)
        except StokerError:
            pass
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    for pid in _workers():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _workers() -> list[int]:
    """Processes of this demo's workers, as their environments name them (Linux)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            env = (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"STOKER_POD_UID=" in env and b"STOKER_CHECKPOINT_DIR=" + str(DATA).encode() in env:
            found.append(int(entry.name))
    return found


def _log_tail() -> str:
    try:
        lines = (DATA / SERVER_LOG).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(["the end of the server's log:", *(f"  {line}" for line in lines[-15:])]) if lines else ""


# The jobs


def _submit(client: Client, name: str, path: str) -> None:
    body: dict[str, Any] = read_manifests(str(ROOT / path))[0].body
    trainer = body["spec"]["trainer"]
    if "command" in trainer:  # the demo's environment may not be the shell's
        trainer["command"] = [sys.executable, *trainer["command"][1:]]
        trainer["workingDir"] = str(ROOT)
    client.submit(body, name=name)
    print(f"$ stoker submit -f {path} --name {name}")


def _watch(client: Client, server: subprocess.Popen[bytes], seen: Seen) -> None:
    """Show all jobs live until the last has ended."""
    deadline = time.monotonic() + LONGEST_S
    with Feed(client) as feed, open_board() as board:
        for name in EXAMPLES:
            feed.follow_events(name)
        while feed.open:
            item = feed.get(timeout_s=1)
            if server.poll() is not None:
                raise DemoFailed(f"stoker up ended with exit code {server.returncode}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"not done after {LONGEST_S} s")
            if item is None:
                continue
            if item.error is not None:
                raise item.error
            if isinstance(item.what, JobChanged):
                seen.take(item.what.job)
                board.update(item.what.job)
                if not seen.explained:
                    _explain_one(client, board, seen)


def _explain_one(client: Client, board: Board, seen: Seen) -> None:
    """Once the others hold the GPUs: what `stoker why` says of the one that waits."""
    waiting = [name for name, job in seen.jobs.items() if job.status.phase is Phase.QUEUED]
    placed = [name for name, job in seen.jobs.items() if job.status.phase in PLACED]
    if len(waiting) != 1 or len(placed) + 1 != len(EXAMPLES):
        return
    why = client.calls.explain(waiting[0])
    if why["blockers"]:
        seen.explained = True
        board.say(f"\n$ stoker why {waiting[0]}\n{explanation_text(waiting[0], why)}\n")


# What came out


def _accuracy(job: TrainingJob) -> float | None:
    progress = job.status.progress
    if progress is None:
        return None
    found = progress.summary.get("accuracy", progress.metrics.get("accuracy"))
    return float(found) if isinstance(found, int | float) else None


def _summary(client: Client, seen: Seen) -> bool:
    """Print the end table; whether every job succeeded and reached the goal."""
    jobs = [client.get(name) for name in EXAMPLES]
    for job in jobs:
        seen.take(job)
    simulated = any(gpu.simulated for node in client.nodes() for gpu in node.status.gpus)
    gpu_title = "SIM. GPU-S" if simulated else "GPU-S"
    goal_title = f"{GOAL:.0%} REACHED"
    titles = ["JOB", "PHASE", "TEST ACC.", goal_title, "TRAINED", "SAMPLES/S", gpu_title]
    columns = [Column(title, right=number > 1) for number, title in enumerate(titles)]
    rows = [_row(job, seen) for job in jobs]
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print("\n" + table(columns, rows, width=None, colour=colour))
    print("Test accuracy is of images never trained on. The time to reach it counts from the start of the job's")
    print("processes; trained: the part of it that was not loading Python, PyTorch and data.")
    if simulated:
        print("Simulated GPU-seconds: slots held, for so many seconds; the CPU did the work.")
    print()
    for job in jobs:
        progress = job.status.progress
        if progress and progress.checkpoint:
            saved = progress.checkpoint
            print(f"{job.metadata.name}: checkpoint of step {saved.step}: {_shown(saved.path)}")
        if progress and (digest := progress.summary.get("splitDigest")):
            print(f"  split of training and test images: {digest}")
        if progress and (weights := progress.summary.get("weights")):
            print(f"  weights for plain PyTorch: {_shown(str(weights))}")
        if job.status.phase is not Phase.SUCCEEDED:
            print(f"  {job.metadata.name} {job.status.phase}: {job.status.message}")
            for line in _last_lines(client, job.metadata.name):
                print(f"    {line}")
    good = all(job.status.phase is Phase.SUCCEEDED and (_accuracy(job) or 0) >= GOAL for job in jobs)
    if good:
        _next_steps()
    return good


def _row(job: TrainingJob, seen: Seen) -> list[str]:
    accuracy, progress = _accuracy(job), job.status.progress
    summary = progress.summary if progress else {}
    to_target = seen.reached_s.get(job.metadata.name)
    trained = summary.get("timeToTargetS")
    rate = progress.metrics.get("samplesPerSecond") if progress else None
    return [
        job.metadata.name,
        job.status.phase,
        DASH if accuracy is None else f"{accuracy:.2%}",
        _reached(accuracy, to_target),
        format_duration(round(trained, 1)) if isinstance(trained, int | float) else DASH,
        DASH if rate is None else f"{rate:,.0f}",
        f"{job.status.ran_s * job.spec.total_gpus:.1f}",
    ]


def _reached(accuracy: float | None, after_s: float | None) -> str:
    if accuracy is None or accuracy < GOAL:
        return "no"
    return "yes" if after_s is None else f"after {format_duration(round(after_s, 1))}"


def _shown(path: str) -> str:
    return path.removeprefix(f"{ROOT}/")


def _last_lines(client: Client, name: str) -> list[str]:
    try:
        return b"".join(client.log_bytes(name, tail=8)).decode(errors="replace").splitlines()
    except StokerError:
        return []


def _next_steps() -> None:
    stoker = Path(sys.executable).with_name("stoker")
    shown = _shown(str(stoker))
    print(f"""
what to try next (in two terminals):
  {shown} up --virtual-gpus 2
  {shown} run -f examples/digits.yaml --set spec.precision=bf16     # mixed precision; Ctrl-C detaches
  {shown} run --gpus 1 -- python your_script.py                     # your own script, unchanged
  {shown} suspend NAME, then: resume NAME                           # it goes on where it was, bit for bit
  docs/quickstart.md: the same with curl and Python""")


if __name__ == "__main__":
    sys.exit(main())
