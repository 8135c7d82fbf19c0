"""A job's own packages, as its `uv.lock` or `requirements.txt` lists them: installed once, kept for later jobs.

A process of its own below the supervisor (`--install <folder> <supervisor's pid>`, with the command's environment),
which may import all of the standard library. What it prints goes to the worker's log; where the environment is, to
`ENVIRONMENT_FILE` in the worker's folder. Never changes the Python it builds upon. Started by `installing`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from .environments import Environments
from .folder import CODE_FOLDER, ENVIRONMENT_FILE, replace_file
from .light_stdlib import PR_SET_PDEATHSIG, prctl

TIMEOUT_S = 1800.0
_MOST_BYTES = 8 << 20
"""Of a list of packages."""
_MOST_INCLUDED = 32

_PRINT_FACTS = """
import importlib.util, json, os, platform, sys, sysconfig
own = [path for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} if path]
places = own + [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
has = sorted({name for path in places if os.path.isdir(path) for name in os.listdir(path) if name.endswith("-info")})
print(json.dumps({"executable": sys.executable, "version": sys.version, "prefix": sys.prefix, "has": has,
    "pip": importlib.util.find_spec("pip") is not None,
    "machine": [platform.machine(), *platform.libc_ver()], "own": own if sys.prefix != sys.base_prefix else []}))
"""
_INCLUDES = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)")
_LOCAL = re.compile(r"\s*(?:-e|--editable)\b|\s*(?:\.|/|file:)|[^#]*@\s*file:")
_NO_NETWORK = re.compile(
    r"name resolution|Name or service not known|nodename nor servname|Network is unreachable|Connection refused"
    r"|timed out|ConnectTimeout|ProxyError|dns error|error sending request|Failed to establish a new connection"
    r"|from versions: none|CERTIFICATE_VERIFY_FAILED|invalid peer certificate|client error \(Connect\)"
)
_BAD_HASH = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch|hash mismatch")


class CannotInstall(Exception):
    """The text says why, for people."""


def main(argv: list[str]) -> int:
    """Returns: the exit code; 0 once the environment is there."""
    folder, parent = argv
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1
    name = os.environ["STOKER_REQUIREMENTS"]
    root = os.environ.get("STOKER_ENVIRONMENTS_DIR") or ""
    limit = int(os.environ.get("STOKER_ENVIRONMENTS_BYTES") or 0)
    try:
        place = Installation(folder + "/" + CODE_FOLDER, name, root or folder + "/environments", limit).run()
    except CannotInstall as error:
        _log("can't install %s: %s" % (name, error))
        return 1
    except OSError as error:
        _log("can't install %s: %s: %s" % (name, error.filename, error.strerror or error))
        return 1
    replace_file(folder, ENVIRONMENT_FILE, json.dumps({"path": place}).encode())
    return 0


class Installation:
    """Of one list into one folder of environments. `limit_bytes` 0: as many as there is room for."""

    def __init__(self, code: str, name: str, root: str, limit_bytes: int) -> None:
        self._code, self._name = code, name
        self._kept = Environments(root, limit_bytes)
        self._file = os.path.join(code, name)
        self._deadline = time.monotonic() + TIMEOUT_S
        self._waited = False
        # The copy's own packages are none of the environment's, and settings that lead elsewhere are not the job's.
        self._env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET")}
        self._env.update(PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PIP_PROGRESS_BAR="off")
        self._env.update(UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1")

    def run(self) -> str:
        """Where the environment is, once it is whole. Raises: CannotInstall, OSError."""
        contents = b"\0".join(self._contents())
        facts = self._facts()
        key = hashlib.sha256(contents + json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        os.makedirs(self._kept.root, exist_ok=True)
        found = self._kept.find(key)
        if found is None:
            with self._kept.locked(key, self._wait):
                found = self._kept.find(key)
                if found is None:
                    return self._make(key, facts)
        _log("environment: %s, installed before" % self._name)
        return found

    def _wait(self) -> None:
        if time.monotonic() >= self._deadline:
            raise CannotInstall("another worker has been at it for %g minutes" % (TIMEOUT_S / 60))
        if not self._waited:
            _log("environment: another worker is installing %s" % self._name)
        self._waited = True

    def _contents(self) -> list[bytes]:
        """All that says what is to be installed: the file and those it names. Raises: CannotInstall."""
        if os.path.basename(self._name) == "uv.lock":
            return [_read(self._file, self._name), _read(os.path.join(os.path.dirname(self._file), "pyproject.toml"))]
        files, found = [self._name], []
        for name in files:  # grows while we walk it
            if len(files) > _MOST_INCLUDED:
                raise CannotInstall("it names over %d other files" % _MOST_INCLUDED)
            found.append(_read(os.path.join(self._code, name), name))
            for line in found[-1].decode("utf-8", "replace").splitlines():
                included = _INCLUDES.match(line)
                if included and "://" not in included[1]:
                    path = os.path.normpath(os.path.join(os.path.dirname(name), included[1]))
                    if path.startswith(("/", "..")):
                        raise CannotInstall("%s lies outside the job's code" % included[1])
                    if path not in files:
                        files.append(path)
                elif _LOCAL.match(line):
                    raise CannotInstall(
                        "%s names a folder or file (%s); what is in the code is imported from the job's copy, without "
                        "being installed" % (name, line.strip()[:100])
                    )
        return found

    def _facts(self) -> dict[str, object]:
        """The Python that the environment is built upon, and what that has."""
        python = next((path for path in map(self._which, ("python", "python3")) if path), None)
        if python is None:
            raise CannotInstall("there is no python in PATH (%s)" % self._env.get("PATH", ""))
        try:
            output = subprocess.run(
                [python, "-c", _PRINT_FACTS],
                env=self._env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=60,
            ).stdout
            facts: dict[str, object] = json.loads(output)
        except (ValueError, subprocess.TimeoutExpired):
            raise CannotInstall("%s does not say which Python it is" % python) from None
        return facts

    def _which(self, name: str) -> str | None:
        return shutil.which(name, path=self._env.get("PATH"))

    def _make(self, key: str, facts: dict[str, object]) -> str:
        self._kept.remove_unused()
        place = self._kept.new_place(key)
        began = time.monotonic()
        _log("environment: installing %s" % self._name)
        try:
            if os.path.basename(self._name) == "uv.lock":
                self._sync(place, facts)
            else:
                self._install(place, facts)
            self._kept.publish(key, place)
        except BaseException as error:
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(error, FileExistsError):  # a file system that can't lock: the first wins
                other = self._kept.find(key)
                if other is None:
                    raise CannotInstall("%s/%s is in the way" % (self._kept.root, key)) from None
                return other
            raise
        scope = "kept for the project's later jobs" if os.environ.get("STOKER_ENVIRONMENTS_DIR") else "for this worker"
        _log("environment: installed in %.0f s, %s" % (time.monotonic() - began, scope))
        return place

    def _sync(self, place: str, facts: dict[str, object]) -> None:
        uv = self._which("uv")
        if uv is None:
            raise CannotInstall(
                "that takes uv, which is not there; add it to the image, or write the lock as requirements.txt: "
                "uv export --frozen --no-emit-project > requirements.txt"
            )
        options = ["sync", "--frozen", "--no-install-project", "--no-install-workspace", "--python"]
        self._env["UV_PROJECT_ENVIRONMENT"] = place
        self._call([uv, *options, str(facts["executable"])], os.path.dirname(self._file))

    def _install(self, place: str, facts: dict[str, object]) -> None:
        """By pip, which leaves alone what the image has; by uv where there is no pip."""
        python = str(facts["executable"])
        own = os.path.join(place, "bin", "python")
        if facts["pip"]:
            self._call([python, "-m", "venv", "--without-pip", "--system-site-packages", place], "/")
            self._add_parents(own, facts)
            argv = [python, "-m", "pip", "--python", own, "install", "-r", self._file]
        else:
            uv = self._which("uv")
            if uv is None:
                raise CannotInstall("%s has no pip, and there is no uv" % python)
            self._call([uv, "venv", "--system-site-packages", "--python", python, place], "/")
            self._add_parents(own, facts)
            argv = [uv, "pip", "install", "--python", own, "-r", self._file]
        self._call(argv, self._code)

    def _add_parents(self, own: str, facts: dict[str, object]) -> None:
        """Upon a virtual environment: a new one would leave it out, and see the Python below it."""
        parents = facts["own"]
        if isinstance(parents, list) and parents:
            script = "import sysconfig; print(sysconfig.get_path('purelib'))"
            output = subprocess.run(
                [own, "-c", script], env=self._env, cwd="/", stdout=subprocess.PIPE, check=True
            ).stdout
            with open(os.path.join(output.decode().strip(), "_stoker_parents.pth"), "w") as file:
                file.write("".join("import site; site.addsitedir(%r)\n" % str(path) for path in parents))

    def _call(self, argv: list[str], folder: str) -> None:
        """Run it with its output in the log. Raises: CannotInstall."""
        child = subprocess.Popen(
            argv, env=self._env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        late = threading.Timer(max(0.0, self._deadline - time.monotonic()), child.kill)
        late.start()
        tail: list[str] = []
        assert child.stdout is not None
        for line in child.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            tail = [*tail, line.decode("utf-8", "replace")][-200:]
        code = child.wait()
        late.cancel()
        if code and time.monotonic() >= self._deadline:
            raise CannotInstall("it took over %g minutes" % (TIMEOUT_S / 60))
        if code:
            raise CannotInstall(_explained("pip" if "-m" in argv else os.path.basename(argv[0]), code, "".join(tail)))


def _log(text: str) -> None:
    sys.stdout.write("[stoker] %s\n" % text)
    sys.stdout.flush()


def _read(path: str, name: str = "") -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if not name:
            return b""
        raise CannotInstall("%s: %s" % (name, error.strerror)) from None
    with os.fdopen(fd, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise CannotInstall("%s has over %d MiB" % (name, _MOST_BYTES >> 20))
    return data


def _explained(program: str, code: int, tail: str) -> str:
    """One line, the fact first."""
    errors = [line.strip() for line in tail.splitlines() if "error" in line.lower()] or tail.strip().splitlines()[-1:]
    error = "".join(c if c.isprintable() else " " for c in (errors or [""])[-1])[:400]
    if _BAD_HASH.search(tail):
        return "a package is not the one of the list: its hash differs (%s)" % error
    if _NO_NETWORK.search(tail):
        return (
            "the package index can't be reached, or does not have it: %s; name another by PIP_INDEX_URL or "
            "UV_INDEX_URL (the job's env, or its runtime's), or bring the packages in the image" % error
        )
    return "%s exited with %d: %s" % (program, code, error)
