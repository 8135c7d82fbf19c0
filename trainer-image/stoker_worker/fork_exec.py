"""Starting a process of the user's: fork, its own session, three descriptors, exec; or why it can't be started.

Owns fork and exec, also those of a session's command. Never waits for a process's end. Called by `ranks` and
`exec_session`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os

from .light_stdlib import PR_SET_PDEATHSIG, find_prctl, prctl

NOT_FOUND = 127
NOT_STARTABLE = 126

# Handled or ignored here, or ignored by what started us; a user's process gets the defaults.
_RESET = tuple(
    getattr(_signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGTERM", "SIGCHLD", "SIGXFSZ", "SIGUSR1", "SIGUSR2")
)
_TIOCSCTTY = 0x540E

MYPY = False
if MYPY:
    from typing import NoReturn


class CannotFork(Exception):
    """The command can't be run; `exit_code` is what a shell would say, the text says why."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Command:
    """What is to run, where, and with what environment."""

    def __init__(self, argv: list[str], env: dict[str, str], working_dir: str) -> None:
        self.argv = argv
        self.env = env
        self.working_dir = working_dir


def find_command(name: str, env: dict[str, str]) -> str:
    """The file that `name` stands for, as a shell would find it in the process's PATH. Raises: CannotFork."""
    if "/" in name:
        return name  # exec judges it, in the process's working folder
    refused = ""
    for folder in env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":"):
        path = (folder or ".") + "/" + name
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            refused = refused or path
    if refused:
        raise CannotFork(NOT_STARTABLE, "can't start %r: %s may not be executed (chmod +x)" % (name, refused))
    raise CannotFork(NOT_FOUND, "can't start %r: there is no such command in PATH (%s)" % (name, env.get("PATH", "")))


def start(command: Command, stdio: tuple[int, int, int], terminal: bool = False) -> int:
    """The pid of the process, which runs the command already, in a session of its own. Raises: CannotFork.

    `stdio`: what becomes its descriptors 0 to 2. `terminal`: descriptor 0 becomes its controlling terminal.
    """
    path = find_command(command.argv[0], command.env)
    parent = os.getpid()
    find_prctl()
    if terminal:
        import fcntl  # noqa: F401 (loaded here, for the child must load nothing)
    error_r, error_w = os.pipe()
    # No signal between fork and exec: a stop meant for the process must not be swallowed by our handlers in the child.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(command, path, parent, stdio, terminal, error_w)
    except OSError as error:
        os.close(error_r)
        raise CannotFork(NOT_STARTABLE, "can't start a process: %s" % error.strerror) from None
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        os.close(error_w)
    try:
        failure = os.read(error_r, 64)  # nothing: the exec closed it
    finally:
        os.close(error_r)
    if failure:
        os.waitpid(pid, 0)
        raise _explain(command, failure)
    return pid


def _become(
    command: Command, path: str, parent: int, stdio: tuple[int, int, int], terminal: bool, error_fd: int
) -> NoReturn:
    """In the child: become the user's command. Never returns."""
    step = b"setup"
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(NOT_STARTABLE)
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        if terminal:
            import fcntl

            fcntl.ioctl(0, _TIOCSCTTY, 0)
        for signum in _RESET:
            _signal.signal(signum, _signal.SIG_DFL)
        step = b"cwd"
        os.chdir(command.working_dir)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        step = b"exec"
        os.execve(path, command.argv, command.env)
    except OSError as error:
        os.write(error_fd, step + b":%d" % (error.errno or 0))
    except BaseException:  # noqa: BLE001 (a ValueError: a NUL in an argument)
        os.write(error_fd, step + b":%d" % errno.EINVAL)
    finally:
        os._exit(NOT_STARTABLE)


def _explain(command: Command, failure: bytes) -> CannotFork:
    step, _, number = failure.partition(b":")
    code = int(number)
    why = os.strerror(code)
    name, working_dir = command.argv[0], command.working_dir
    if step == b"cwd":
        return CannotFork(NOT_STARTABLE, "can't enter the working folder %r: %s" % (working_dir, why))
    if step == b"exec" and code == errno.ENOENT:
        if os.path.exists(os.path.join(working_dir, name)):
            return CannotFork(NOT_FOUND, "can't start %r: the interpreter its first line names is missing" % name)
        return CannotFork(NOT_FOUND, "can't start %r: there is no such file in %s" % (name, working_dir))
    if step == b"exec" and code == errno.EACCES:
        return CannotFork(NOT_STARTABLE, "can't start %r: it may not be executed (chmod +x)" % name)
    if step == b"exec" and code == errno.ENOEXEC:
        return CannotFork(NOT_STARTABLE, "can't start %r: no program and no '#!' line" % name)
    return CannotFork(NOT_STARTABLE, "can't start %r: %s" % (name, why))
