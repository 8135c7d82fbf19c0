"""What the command costs: CPU time of ten common commands. Run: python -m tools.bench.cli

Starts `stoker up` in a folder of its own with a dozen ended jobs, then runs each command eleven times, in turns. CPU
time: user and system of the command's process and its children, by `wait4`; medians. `--before FOLDER` measures
another checkout beside this one, in the same turns, each against its own server. Owns nothing but the measurement; used
by people.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from tools.bench.record import record

ROUNDS = 11
JOBS = 12
RECIPE = {
    "apiVersion": "stoker.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"generateName": "bench-"},
    "spec": {"trainer": {"recipe": "image-classification"}},
}
_MAIN = "from stoker.cli.main import main; main()"
COMMANDS = (
    "--help",
    "get jobs",
    "get {job}",
    "why {job}",
    "logs {job} --tail 5",
    "events {job}",
    "queue ls",
    "submit -f {file} --dry-run",
    "submit --no-code -- true",
    "run --no-code -- true",
)


def cpu_s(arguments: Sequence[str], env: Mapping[str, str]) -> float:
    """User and system time of one run. Raises: SystemExit when the command fails."""
    begun = subprocess.Popen(
        [sys.executable, "-c", _MAIN, *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert begun.stderr is not None
    errors = begun.stderr.read()
    _, status, used = os.wait4(begun.pid, 0)
    begun.returncode = os.waitstatus_to_exitcode(status)
    if begun.returncode:
        raise SystemExit(f"stoker {' '.join(arguments)}: {errors.decode()}")
    return used.ru_utime + used.ru_stime


def client(home: Path, checkout: Path | None) -> dict[str, str]:
    """The environment in which Python imports the `stoker` of that checkout; None: this one's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    roots = [] if checkout is None else [str(checkout / root) for root in ("operator", "api", "trainer-image")]
    return env | {"STOKER_HOME": str(home), "PYTHONPATH": os.pathsep.join(roots)}


@contextmanager
def server(home: Path, env: Mapping[str, str]) -> Iterator[str]:
    """A server with ended jobs; the name of one of them."""
    stoker = [sys.executable, "-c", _MAIN]
    up = subprocess.Popen([*stoker, "up", "--port", "0", "--virtual-gpus", "2"], env=env, stderr=subprocess.DEVNULL)
    try:
        while not (home / "endpoint.json").exists():
            if up.poll() is not None:
                raise SystemExit("`stoker up` did not start")
            time.sleep(0.1)
        submit = [*stoker, "submit", "--gpus", "1", "--no-code", "--", "echo", "hello"]
        names = [subprocess.check_output(submit, env=env, text=True).strip() for _ in range(JOBS)]
        for name in names:
            subprocess.run([*stoker, "follow", name], env=env, capture_output=True, check=True)
        yield names[0]
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--before", type=Path, help="a checkout whose client is measured too")
    options = parser.parse_args()
    checkouts = {"now": None} | ({"before": options.before} if options.before else {})
    found: dict[tuple[str, str], list[float]] = {(text, name): [] for text in COMMANDS for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="bench-cli-") as folder, ExitStack() as servers:
        file = Path(folder, "job.json")
        file.write_text(json.dumps(RECIPE))
        clients = {name: client(Path(folder, name), checkout) for name, checkout in checkouts.items()}
        jobs = {name: servers.enter_context(server(Path(folder, name), env)) for name, env in clients.items()}
        for _ in range(options.rounds):
            for text, name in found:
                arguments = [one.format(job=jobs[name], file=file) for one in text.split()]
                found[text, name].append(cpu_s(arguments, clients[name]))
    for text in COMMANDS:
        row = {f"{name}_ms": 1000 * median(found[text, name]) for name in checkouts}
        ratio = {"ratio": row["before_ms"] / row["now_ms"]} if "before_ms" in row else {}
        record(command=text.replace("{job}", "JOB").replace("{file}", "FILE"), **row, **ratio)
        print(f"{text:<28}" + "".join(f"  {name} {value:6.0f}" for name, value in row.items()))


if __name__ == "__main__":
    main()
