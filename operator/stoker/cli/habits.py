"""What other tools call our commands, and what to type here. Read only where a command is unknown."""

from __future__ import annotations

from collections.abc import Mapping

HABITS: Mapping[str, str] = {
    "apply": "submit -f FILE",
    "attach": "follow JOB",
    "config": "--server URL, or STOKER_SERVER and STOKER_TOKEN",
    "connect": "exec JOB",
    "create": "submit -f FILE",
    "describe": "get JOB",
    "explain": "why JOB",
    "forward": "port-forward JOB PORT",
    "hold": "suspend JOB",
    "info": "get JOB",
    "inspect": "get JOB -o yaml",
    "job": "get JOB",
    "jobs": "ls",
    "kill": "cancel JOB",
    "launch": "run",
    "list": "ls",
    "login": "--token TOKEN, or STOKER_TOKEN",
    "nodes": "get nodes",
    "plot": "metrics JOB",
    "nvidia-smi": "exec JOB -- nvidia-smi",
    "pause": "suspend JOB",
    "ps": "ls",
    "queues": "queue ls",
    "release": "resume JOB",
    "remove": "delete JOB",
    "requeue": "retry JOB",
    "rerun": "clone JOB",
    "restart": "retry JOB",
    "rm": "delete JOB",
    "runtimes": "get runtimes",
    "sacct": "usage",
    "sbatch": "submit",
    "scancel": "cancel JOB",
    "secrets": "secret list",
    "serve": "up",
    "server": "up",
    "shell": "exec JOB",
    "show": "get JOB",
    "sinfo": "get nodes",
    "squeue": "ls",
    "srun": "run",
    "ssh": "exec JOB",
    "start": "up",
    "stat": "get JOB",
    "status": "get JOB",
    "stop": "cancel JOB",
    "submit-job": "submit",
    "tail": "logs -f JOB",
    "tokens": "token list",
    "top": "get nodes",
    "version": "--version",
    "watch": "ls -w",
}
"""Another tool's command → the rest of the line after `stoker`."""
QUEUE_HABITS: Mapping[str, str] = {
    "add": "queue set NAME",
    "apply": "queue set NAME",
    "create": "queue set NAME",
    "delete": "queue rm NAME",
    "edit": "queue set NAME",
    "get": "queue ls",
    "list": "queue ls",
    "remove": "queue rm NAME",
    "show": "queue ls",
    "update": "queue set NAME",
}
TOKEN_HABITS: Mapping[str, str] = {
    "add": "token create NAME --project PROJECT",
    "delete": "token revoke NAME",
    "get": "token list",
    "ls": "token list",
    "new": "token create NAME --project PROJECT",
    "remove": "token revoke NAME",
    "rm": "token revoke NAME",
}
NODE_HABITS: Mapping[str, str] = {
    "close": "node cordon NODE",
    "drain": "node cordon NODE",
    "get": "get node NODE",
    "list": "node ls",
    "open": "node uncordon NODE",
    "show": "get node NODE",
}
SECRET_HABITS: Mapping[str, str] = {
    "add": "secret set NAME",
    "create": "secret set NAME",
    "get": "secret list",
    "ls": "secret list",
    "remove": "secret delete NAME",
    "rm": "secret delete NAME",
    "show": "secret list",
    "update": "secret set NAME",
}
ALSO: Mapping[str, str] = {
    "describe": "why JOB says what it waits for",
    "rm": "cancel JOB stops it and keeps it",
    "remove": "cancel JOB stops it and keeps it",
    "status": "why JOB says what it waits for",
    "stop": "suspend JOB stops it until `resume`",
    "top": "usage JOB says what one job's GPUs did",
}
"""What the word may mean beside that."""
_WHOLE = {"": HABITS, "queue": QUEUE_HABITS, "node": NODE_HABITS, "secret": SECRET_HABITS, "token": TOKEN_HABITS}


def unknown_command(word: str, group: str, known: list[str]) -> str:
    """What to say of `word`, which is no command of ours. `group`: '' or the name of a group of commands."""
    from difflib import get_close_matches

    within = f"{group} " if group else ""
    meant = _WHOLE.get(group, {}).get(word.lower())
    if meant is not None:
        also = ALSO.get(word.lower()) if not group else None
        return f"no command {within + word!r}; here it is: stoker {meant}" + (f" (stoker {also})" if also else "")
    near = get_close_matches(word, known, 1)
    return f"no command {within + word!r}" + (f"; did you mean {within + near[0]!r}?" if near else "")
