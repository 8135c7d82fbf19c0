"""The supervisor as something to start: a compiled folder for this Python, or one zipapp for any. Both hold, apart,
what a job's script may import (`stoker_job`).

Called by the node agent at its start (folder: 4 ms of CPU less per worker than the zipapp, which runpy and zipimport
take; measured on 3.11), by an image's build (zipapp) and as a pod's init container:
`python -m stoker_worker.bundle install /stoker`. Never imported by the supervisor itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import py_compile
import shutil
import sys
import tempfile
import zipfile

from .ranks import JOB_FOLDER

PACKAGE = "stoker_worker"
JOB_PACKAGE = "stoker_job"
ZIPAPP = "worker.pyz"
START = "start"
_NOT_SHIPPED = {"bundle.py"}


def build_folder(parent: str) -> str:
    """The path to start (`python -I -S <path> <launch.json>`): a copy of this package, compiled, under `parent`.

    Named by its content, so that workers which run an older one are not disturbed; built once.
    """
    sources, for_jobs = _sources(PACKAGE), _sources(JOB_PACKAGE)
    content = (sources, for_jobs, sys.implementation.cache_tag, sys.version)
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:16]
    home = os.path.join(parent, "supervisor-" + digest)
    start = os.path.join(home, PACKAGE, "__main__.py")
    if os.path.exists(start):
        return start
    os.makedirs(parent, exist_ok=True)
    building = tempfile.mkdtemp(dir=parent, prefix=".supervisor-")
    for name, source in for_jobs:
        _write(os.path.join(building, JOB_FOLDER, JOB_PACKAGE, name), source)
    package = os.path.join(building, PACKAGE)
    for name, source in sources:
        path = os.path.join(package, name)
        _write(path, source)
        # Unchecked: the folder's name vouches for its content, so start-up need not compare source and bytecode.
        py_compile.compile(
            path,
            cfile=importlib.util.cache_from_source(path),
            dfile=name,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    try:
        os.rename(building, home)
    except OSError:
        shutil.rmtree(building)  # another one was faster
        if not os.path.exists(start):
            raise
    return start


def build_zipapp(path: str) -> None:
    """Write one file that runs on any Python >= 3.8, with bytecode for this one beside the sources."""
    archive = io.BytesIO()
    # Stored, not deflated: it is small, and zlib need not be loaded.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as bundle:
        for name, source in _sources(JOB_PACKAGE):
            _add(bundle, JOB_FOLDER + "/" + JOB_PACKAGE + "/" + name, source)
        for name, source in _sources(PACKAGE):
            inside = name if name == "__main__.py" else PACKAGE + "/" + name
            _add(bundle, inside, source)
            if name != "__main__.py":
                _add(bundle, inside + "c", _bytecode(inside, source, os.path.dirname(os.path.abspath(path))))
    _write_executable(path, b"#!/usr/bin/env -S python3 -I -S\n" + archive.getvalue())


def install(folder: str) -> None:
    """Put the zipapp and the entry point of a worker's container into `folder`, for any user. Raises: OSError."""
    os.makedirs(folder, exist_ok=True)
    build_zipapp(os.path.join(folder, ZIPAPP))
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "start.sh"), "rb") as file:
        _write_executable(os.path.join(folder, START), file.read())


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[0] != "install":
        print("usage: python -m stoker_worker.bundle install <folder>", file=sys.stderr)  # noqa: T201
        return 64
    try:
        install(argv[1])
    except OSError as error:
        print("can't install the supervisor into %s: %s" % (argv[1], error), file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _sources(package: str) -> list[tuple[str, bytes]]:
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), package)
    sources = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py") and name not in _NOT_SHIPPED:
            with open(os.path.join(folder, name), "rb") as file:
                sources.append((name, file.read()))
    return sources


def _write(path: str, source: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(source)


def _bytecode(inside: str, source: bytes, workspace: str) -> bytes:
    """`workspace`: the one folder that is sure to be writable; a pod has no /tmp of its own accord."""
    handle, compiled = tempfile.mkstemp(suffix=".pyc", dir=workspace)
    os.close(handle)
    original = compiled[:-1]
    try:
        with open(original, "wb") as file:
            file.write(source)
        py_compile.compile(
            original,
            cfile=compiled,
            dfile=inside,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        with open(compiled, "rb") as file:
            return file.read()
    finally:
        for leftover in (compiled, original):
            with contextlib.suppress(OSError):
                os.unlink(leftover)


def _add(bundle: zipfile.ZipFile, name: str, data: bytes) -> None:
    bundle.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), data)


def _write_executable(path: str, data: bytes) -> None:
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "wb") as file:
        file.write(data)
    os.chmod(temporary, 0o755)
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
