"""Runs the commands of a page of documentation as they are written, and says where the first one failed.

Owns which lines of a page are commands, where a block can run (`place`), and the values that a test puts in, all from
documented.toml. A page is one bash script, its blocks in order, so that a variable set in one block is there in the
next. Never builds or installs anything. Called by tests/docs and, with real nodes, tests/e2e/cluster.

A block is marked `console` (commands after `$ `, the rest is output), `sh` (all of it is commands) or `python`. What
can't run is marked `text`, with the reason on the page.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.harness import free_port
from tests.support.testbed import build
from tests.support.testbed.errors import Unavailable

ROOT = Path(__file__).resolve().parents[2]
TABLE: dict[str, Any] = tomllib.loads((ROOT / "tests" / "support" / "documented.toml").read_text())
PROGRAMS = Path(sys.executable).parent
PROCESS_TREE = Path(__file__).with_name("process_tree.py")
RUNBOOKS = "docs/runbooks"
TIMEOUT_S = 300.0

_PROGRAMS = "apt-get cd ctr curl dmesg eval export helm ipmitool kubectl make nvidia-smi pip ps python stoker time"
_COMMAND = rf"(?:{_PROGRAMS.replace(' ', '|')})(?: .*|$)"
_INDENTED = rf"^(?: {{4}}|\t)(?:\$ .*|{_COMMAND})"
_PROLOGUE = """
set -E -o pipefail
at() { at=$1; echo "at $1" >&3; }
trap 'echo "failed $at" >&3; exit 1' ERR             # -E: in a command substitution too, whatever becomes of its value
running=(); declare -A place
curl() { command curl -sS --fail-with-body "$@"; }
# until_shows PROGRAM TEXT COMMAND…: left running once TEXT is in its output; a second one of PROGRAM replaces the first
until_shows() {
  local program=$1 text=$2 out line; shift 2
  [ -z "${place[$program]}" ] || ends "${place[$program]}"
  exec {out}< <(exec "$@" 2>&1); place[$program]=$!; running+=($!)
  while read -r line <&$out; do
    echo "$line"
    if [[ $line == *"$text"* ]]; then cat <&$out >/dev/null & return 0; fi
  done
  return 1
}
ends() { kill -TERM "$1" 2>/dev/null && tail --pid="$1" -f /dev/null || true; }
trap 'trap - ERR; for pid in "${running[@]}"; do ends "$pid"; done' EXIT
"""


@dataclass(frozen=True)
class Block:
    """One run of commands: (line on the page, text) each; of Python all of it as one."""

    language: str
    commands: tuple[tuple[int, str], ...]

    @property
    def place(self) -> str:
        """Where it can run: on one "machine", a "cluster" without nodes, with "nodes"; or it takes "long"."""
        if self.language == "python":
            return "machine"
        text = "\n".join(command for _, command in self.commands)
        return next((one for one, pattern in TABLE["places"].items() if re.search(pattern, text)), "machine")


def blocks(text: str) -> list[Block]:
    """The blocks that are run, in order. Raises: ValueError for a command in a block that is not run as one."""
    found, lines = [], text.splitlines()
    if indented := re.search(_INDENTED, re.sub(r"```[\s\S]*?```", "", text), re.MULTILINE):
        raise ValueError(f"put commands between fences, not indented: {indented[0]}")
    if (unrun := re.search(rf"^```text\n{_COMMAND}", text, re.MULTILINE)) and "(`text`" not in text:
        raise ValueError(f"say on the page why this can't run, as (`text`: …): {unrun[0]}")
    fences = [number for number, line in enumerate(lines, 1) if re.match(r"\s*```", line)]
    for opened, closed in zip(fences[::2], fences[1::2], strict=True):
        language = lines[opened - 1].strip().removeprefix("```")
        inside = list(enumerate(lines[opened : closed - 1], opened + 1))
        if language == "python":
            found.append(Block(language, ((opened + 1, "\n".join(line for _, line in inside)),)))
        elif language in ("console", "sh"):
            found.append(Block(language, tuple(_commands(inside, "$ " if language == "console" else ""))))
        elif language in ("bash", "shell") or (language != "text" and any(line.startswith("$ ") for _, line in inside)):
            raise ValueError(f"line {opened}: mark commands `console`, or `text` with the reason why they can't run")
    return found


def _commands(lines: list[tuple[int, str]], prompt: str) -> Iterator[tuple[int, str]]:
    began, text = 0, ""
    for number, line in lines:
        if not text:
            if not line.startswith(prompt) or not line.strip() or line.lstrip().startswith("#"):
                continue
            began, text = number, line.removeprefix(prompt)
        else:
            text += f"\n{line}"
        if _whole(text):
            yield began, text
            text = ""


def _whole(text: str) -> bool:
    """Whether a shell would start it, or wait for more lines."""
    if heredoc := re.search(r"<<-?\s*['\"]?(\w+)", text):
        return text.endswith(f"\n{heredoc[1]}")
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return not text.endswith("\\")


@dataclass
class Sandbox:
    """A folder with a copy of the repository's files, a home, free ports, and the environment that commands see."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "home").mkdir(parents=True)
        left_out = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "tests", "screenshots", ".whl")
        shutil.copytree(ROOT, self.folder / "stoker", ignore=left_out)
        (self.folder / "stoker" / ".venv").symlink_to(PROGRAMS.parent)
        for name, text in TABLE["files"].items():
            path = self.folder / "stoker" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "KUBE"))}
        programs = _built("kubectl", "helm", "prometheus")
        ours = {
            "HOME": str(self.folder / "home"),
            "PATH": ":".join([str(PROGRAMS), *programs, kept["PATH"]]),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.env = kept | ours | self.env
        ports = {"port": str(free_port()), "exporter_port": str(free_port()), "prometheus_port": str(free_port())}
        self.values = ports | {"folder": str(self.folder)} | self.values

    def put_in(self, text: str) -> str:
        """The command with the table's values, longest first. `{port}` and the like are this sandbox's own."""
        for said in sorted(TABLE["values"], key=len, reverse=True):
            text = text.replace(said, TABLE["values"][said])
        return re.sub(r"\{(\w+)\}", lambda found: self.values.get(found[1], found[0]), text)

    def run(self, page: str, text: str, *places: str) -> None:
        """Run the blocks of `text` that belong to these places. Raises: AssertionError naming page, line and output."""
        chosen = [block for block in blocks(text) if block.place in places]
        by_line = {line: command for block in chosen for line, command in block.commands}
        steps = [self._step(line, command, block.language) for block in chosen for line, command in block.commands]
        whole = "\n".join(steps)
        before = [
            command
            for place in places
            for pattern, commands in TABLE["before"].get(place, {}).items()
            if re.search(pattern, whole)
            for command in commands
        ]
        steps = [self._step(0, command, "sh") for command in before] + steps
        script, progress, output = self.folder / "page.sh", self.folder / "progress", self.folder / "output"
        script.write_text("\n".join([_PROLOGUE, *steps, ""]))
        with progress.open("w") as lines, output.open("w") as out:
            bash = ["bash", "-c", f'exec 3>&{lines.fileno()}; . "$0"', str(script)]
            process = subprocess.Popen(
                [sys.executable, "-I", PROCESS_TREE, *bash], cwd=self.folder / "stoker", env=self.env,
                stdin=subprocess.PIPE, stdout=out, stderr=out, pass_fds=[lines.fileno()], start_new_session=True,
            )  # fmt: skip
            assert process.stdin is not None
            with process:  # which closes its input: nothing is left of it then
                try:
                    code: int | None = process.wait(TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    code = None
        reached = [line.split() for line in progress.read_text().splitlines()]
        failed = [line for what, line in reached if what == "failed"]
        if failed or code != 0:
            line = int(failed[0] if failed else reached[-1][1])
            why = "failed" if code is not None else f"did not end within {TIMEOUT_S:.0f} s"
            last = "\n".join(output.read_text(errors="replace").splitlines()[-40:])
            shown = self.put_in(by_line.get(line, f"(before the page) {before}"))
            raise AssertionError(f"{page}:{line} {why}:\n$ {shown}\n{last}")

    def _step(self, line: int, command: str, language: str) -> str:
        if language == "python":
            return f"at {line}; python - <<'END_OF_PYTHON'\n{self.put_in(command)}\nEND_OF_PYTHON"
        for start, shows in TABLE["endless"].items():
            if re.match(start, command):
                waited = f"until_shows {shlex.quote(start)} {shlex.quote(shows)}"
                return f"at {line}; {waited} {self.put_in(command).removesuffix(' &')}"
        return f"at {line}; {self.put_in(command)}"


def _built(*programs: str) -> list[str]:
    folders = []
    for name in programs:
        with contextlib.suppress(Unavailable):
            folders.append(str(build.program(name).parent))
    return folders


def pages() -> Mapping[str, str]:
    """Name → text of every page whose commands are run; the runbooks as one."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths} | {RUNBOOKS: _runbooks()}


def _runbooks() -> str:
    """Each command once, in a block of its own: of those that stand together one needs a cluster, another does not."""
    books = sorted((ROOT / RUNBOOKS).glob("*.md"))
    every = (text for book in books for block in blocks(book.read_text()) for _, text in block.commands)
    return "\n".join(f"```sh\n{text}\n```" for text in dict.fromkeys(re.sub(r"\s+# .*", "", text) for text in every))


def notes(text: str) -> str:
    """What Helm prints after an installation, as a page: lines that are indented are commands."""
    return re.sub(r"((?:^ {2}\S.*\n?)+)", lambda found: f"```sh\n{found[1].rstrip()}\n```\n", text, flags=re.MULTILINE)
