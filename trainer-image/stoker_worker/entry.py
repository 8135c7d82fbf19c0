"""The supervisor's start: its arguments, its order, the lock; then its life (`supervisor`), and the process's end.

Called by `__main__`. Two entry points: `<launch.json> [--lock-fd N] [--ready-fd N] [--secrets-fd N] [--open-files N]`
(node agent: the order is a file) and `--pod [--stop] -- <argv…>` (a container: the order is the environment).
`--session` and `--install` are for processes that a supervisor starts beside its ranks and before them; `--reader` is
no supervisor (`reader`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import resource
import sys

from .folder import LOCK_FILE, Launch, read_launch, read_secrets
from .supervisor import BROKEN, Supervisor

MYPY = False
if MYPY:
    from typing import NoReturn

    from .pod import PodOrder


def main(argv: list[str], stop_requests: list[int]) -> None:
    """Run one worker to its end and leave with its exit code. Never returns."""
    if argv[:1] == ["--session"]:
        from .session import main as serve_session

        os._exit(serve_session(argv[1:], stop_requests))
    if argv[:1] == ["--install"]:
        from .install import main as install

        sys.stdout.flush()
        code = install(argv[1:])
        sys.stdout.flush()
        os._exit(code)
    if argv[:1] == ["--reader"]:
        from .reader import main as serve_files

        os._exit(serve_files(os.environ, stop_requests))
    pod: PodOrder | None = None
    if argv[:1] == ["--pod"]:
        _close_strays(set())
        pod = _compose(argv[1:], stop_requests)
        folder, launch, ready_fd = pod.folder, pod.launch, -1
        _take_lock(folder)
        _hold_data(launch.env.pop("STOKER_DATA_HOLD", ""))
    else:
        folder, launch, ready_fd = _order(argv)
    supervisor = Supervisor(folder, launch, stop_requests, ready_fd, pod)
    try:
        code = supervisor.run()
    except Exception as error:  # noqa: BLE001 (the edge: whatever it was, nothing may be left running)
        supervisor.kill_all()
        _leave("the supervisor failed: %r" % error)
    os._exit(code & 0xFF)


def _order(argv: list[str]) -> tuple[str, Launch, int]:
    """The order from its file; its folder; the descriptor that wants to know of the start."""
    launch_path, lock_fd, ready_fd, secrets_fd = _arguments(argv)
    folder = os.path.dirname(os.path.abspath(launch_path))
    _close_strays({lock_fd, ready_fd, secrets_fd})
    if lock_fd < 0:
        _take_lock(folder)
    try:
        launch = read_launch(launch_path)
        if secrets_fd >= 0:
            launch.env.update(read_secrets(secrets_fd))
        if launch.memory_group:
            _join(launch)
        _hold_data(launch.env.pop("STOKER_DATA_HOLD", ""))
        return folder, launch, ready_fd
    except (OSError, ValueError, KeyError, TypeError) as error:
        _leave("can't read %s: %r" % (launch_path, error))


def _join(launch: Launch) -> None:
    """Go where the worker's memory is limited, before anything is started."""
    from .memory_group import join

    if not join(launch.memory_group):
        sys.stderr.write("stoker_worker: the job's memory is not enforced: %s can't be joined\n" % launch.memory_group)
        launch.memory_group = ""


def _hold_data(folders: str) -> None:
    """Keep fetched data from being removed, for as long as we live: what removes it asks for these locks."""
    import fcntl

    for folder in filter(None, folders.split(os.pathsep)):
        file = _first_file(folder)
        try:
            if file:
                fcntl.flock(os.open(file, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass  # it is gone already: the command says so


def _first_file(folder: str) -> str:
    """The file that stands for the whole in locks (`stoker.fetch.cache`); '': it has none."""
    for below, folders, files in os.walk(folder):
        folders.sort()
        if files:
            return below + "/" + min(files)
    return ""


def _compose(arguments: list[str], stop_requests: list[int]) -> PodOrder:
    from .pod import NotAPod, compose

    if arguments[:1] == ["--stop"]:  # it came before we could catch it
        stop_requests.append(_signal.SIGTERM)
        arguments = arguments[1:]
    if arguments[:1] != ["--"] or len(arguments) < 2:
        _leave("usage: worker.pyz --pod -- <command> [argument ...]")
    try:
        return compose(os.environ, arguments[1:])
    except NotAPod as error:
        _leave(str(error))
    except OSError as error:
        _leave(
            "can't make the run's folder: %s; mount an emptyDir there that this user (%d) may write"
            % (error, os.getuid())
        )


def _arguments(argv: list[str]) -> tuple[str, int, int, int]:
    options = {"--lock-fd": -1, "--ready-fd": -1, "--secrets-fd": -1, "--open-files": -1}
    paths = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in options and rest and rest[0].isdigit():
            options[word] = int(rest.pop(0))
        elif word.startswith("-"):
            _leave("unknown option %s" % word)
        else:
            paths.append(word)
    if len(paths) != 1:
        _leave("usage: stoker_worker <launch.json> [--lock-fd N] [--ready-fd N] [--secrets-fd N] [--open-files N]")
    open_files = options.pop("--open-files")
    if open_files >= 0:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
    for fd in options.values():
        if fd >= 0:
            os.set_inheritable(fd, False)
    return paths[0], options["--lock-fd"], options["--ready-fd"], options["--secrets-fd"]


def _close_strays(keep: set[int]) -> None:
    """Close what was inherited by accident; a user's process must not hold other people's files."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the listing's own


def _take_lock(folder: str) -> None:
    """We were not started with the lock: hold it ourselves, for as long as we live."""
    import fcntl

    fd = os.open(folder + "/" + LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _leave("another supervisor runs in %s" % folder)


def _leave(message: str) -> NoReturn:
    sys.stderr.write("stoker_worker: " + message + "\n")
    sys.stderr.flush()
    os._exit(BROKEN)
