"""Starting a rank: its environment, its command, its own session, tied to the supervisor's life.

Owns fork and exec. Never waits for a rank's end; `supervisor` does.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import errno
import os

from .folder import Launch
from .lean import PR_SET_PDEATHSIG, prctl

NOT_FOUND = 127
NOT_STARTABLE = 126

# Handled or ignored here, or ignored by whoever started us; a user's process gets the defaults.
_RESET = tuple(
    getattr(_signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGTERM", "SIGCHLD", "SIGXFSZ", "SIGUSR1", "SIGUSR2")
)


class CannotStart(Exception):
    """The command can't be run; `exit_code` is what a shell would say, the text says why."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def rank_env(launch: Launch, local_rank: int) -> dict[str, str]:
    """The whole environment of one rank: launch.json's and torchrun's variables.

    Source: torch.distributed.run, "Environment variables" (RANK … GROUP_WORLD_SIZE) and its PET_ prefix for options.
    """
    env = dict(launch.env)
    env.update(
        RANK=str(launch.worker * launch.ranks + local_rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(launch.workers * launch.ranks),
        LOCAL_WORLD_SIZE=str(launch.ranks),
        GROUP_RANK=str(launch.worker),
        GROUP_WORLD_SIZE=str(launch.workers),
        MASTER_ADDR=launch.master_addr,
        MASTER_PORT=str(launch.master_port),
        PET_NNODES=str(launch.workers),
        PET_NODE_RANK=str(launch.worker),
        PET_NPROC_PER_NODE=str(max(1, launch.gpus)),
        PET_MASTER_ADDR=launch.master_addr,
        PET_MASTER_PORT=str(launch.master_port),
    )
    return env


def find_command(name: str, env: dict[str, str]) -> str:
    """The file that `name` stands for, as a shell would find it in the rank's PATH. Raises: CannotStart."""
    if "/" in name:
        return name  # exec judges it, in the rank's working folder
    refused = ""
    for folder in env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":"):
        path = (folder or ".") + "/" + name
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            refused = refused or path
    if refused:
        raise CannotStart(NOT_STARTABLE, "can't start %r: %s may not be executed (chmod +x)" % (name, refused))
    raise CannotStart(NOT_FOUND, "can't start %r: there is no such command in PATH (%s)" % (name, env.get("PATH", "")))


def start_rank(launch: Launch, local_rank: int, output_fd: int) -> int:
    """The pid of the rank, which runs the command already. Raises: CannotStart."""
    env = rank_env(launch, local_rank)
    path = find_command(launch.argv[0], env)
    parent = os.getpid()
    null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    error_r, error_w = os.pipe()
    # No signal between fork and exec: a stop meant for the rank must not be swallowed by our handlers in the child.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(launch, path, env, parent, null_fd, output_fd, error_w)
    except OSError as error:
        os.close(error_r)
        raise CannotStart(NOT_STARTABLE, "can't start a process: %s" % error.strerror) from None
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        os.close(error_w)
        os.close(null_fd)
    try:
        failure = os.read(error_r, 64)  # nothing: the exec closed it
    finally:
        os.close(error_r)
    if failure:
        os.waitpid(pid, 0)
        raise _explain(launch, failure)
    return pid


def _become(
    launch: Launch, path: str, env: dict[str, str], parent: int, null_fd: int, output_fd: int, error_fd: int
) -> None:
    """In the child: become the user's command. Never returns."""
    step = b"setup"
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
        if os.getppid() != parent:  # the supervisor died before the line above
            os._exit(NOT_STARTABLE)
        os.dup2(null_fd, 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        for signum in _RESET:
            _signal.signal(signum, _signal.SIG_DFL)
        step = b"cwd"
        os.chdir(launch.working_dir)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        step = b"exec"
        os.execve(path, launch.argv, env)
    except OSError as error:
        os.write(error_fd, step + b":%d" % (error.errno or 0))
    except BaseException:  # noqa: BLE001 (a ValueError: a NUL in an argument)
        os.write(error_fd, step + b":%d" % errno.EINVAL)
    finally:
        os._exit(NOT_STARTABLE)


def _explain(launch: Launch, failure: bytes) -> CannotStart:
    step, _, number = failure.partition(b":")
    code = int(number)
    why = os.strerror(code)
    name = launch.argv[0]
    if step == b"cwd":
        return CannotStart(NOT_STARTABLE, "can't enter the working folder %r: %s" % (launch.working_dir, why))
    if step == b"exec" and code == errno.ENOENT:
        if os.path.exists(os.path.join(launch.working_dir, name)):
            return CannotStart(NOT_FOUND, "can't start %r: the interpreter its first line names is missing" % name)
        return CannotStart(NOT_FOUND, "can't start %r: there is no such file in %s" % (name, launch.working_dir))
    if step == b"exec" and code == errno.EACCES:
        return CannotStart(NOT_STARTABLE, "can't start %r: it may not be executed (chmod +x)" % name)
    if step == b"exec" and code == errno.ENOEXEC:
        return CannotStart(NOT_STARTABLE, "can't start %r: no program and no '#!' line" % name)
    return CannotStart(NOT_STARTABLE, "can't start %r: %s" % (name, why))
