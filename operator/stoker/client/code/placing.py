"""What a command means where it will run: the code it is shipped with, which program its first word is, and what it
gets of the environment that it is submitted from.

Called by `stoker run | submit` (`--code`, `--no-code`) and by `Client.run`.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.client.errors import ApiError, BadInput

from .sizes import files_text, size_text

if TYPE_CHECKING:
    from stoker.client.calls import Calls
    from stoker.client.environment.environments import Environment

    from .bundle import Bundle
    from .left_out import LeftOutPath
    from .sending import Progress


def place_commands(
    calls: Calls,
    specs: Sequence[Any],
    *,
    folder: str | None,
    no_code: bool,
    dry_run: bool = False,
    project: str | None = None,
    install: bool = False,
    say: Callable[[str], object] = lambda text: None,
    bar: Callable[[int], AbstractContextManager[Progress | None]] = lambda size: nullcontext(),
) -> None:
    """Ship the folder that goes with the commands among `specs`, and write into them where they start.

    `say` is called with what becomes of the code, for people. `bar` shows the sending of so many bytes.

    A job that names `workingDir` or `code` is left as it is, unless `folder` is named. A dry run sends no code, and so
    leaves `code` out: the server would not know it. `install`: the packages that the folder lists are installed for the
    jobs.
    """
    if folder is not None and no_code:
        raise BadInput("give either --code FOLDER or --no-code")
    with_command = [spec for spec in specs if _command_of(spec) is not None]
    trainers = [spec["trainer"] for spec in with_command]
    if folder is not None and not trainers:
        raise BadInput("--code goes with a command; a recipe brings its own code")
    if folder is not None and any("code" in trainer for trainer in trainers):
        raise BadInput("the file names trainer.code already; leave out either that or --code")
    shipping = [
        spec
        for spec in with_command
        if folder is not None or (not no_code and not {"workingDir", "code"} & spec["trainer"].keys())
    ]
    shipped = [spec["trainer"] for spec in shipping]
    if install and not shipped:
        raise BadInput("--install goes with a command that ships its folder")
    bundle = None
    if shipped:
        bundle = _read(folder or _here())
        for trainer in shipped:
            _check_program(trainer, bundle)
            if install:
                trainer["requirements"] = _list_of_packages(trainer, bundle)
    here = any("image" not in trainer for trainer in trainers) and _on_this_machine(calls)
    environments = [] if bundle is None else _give_environments(shipping, bundle, here=here)
    if any(environment.launched for environment in environments):
        bundle = _read(folder or _here())  # uv, say, may have brought its lock file up to date
    if here:
        for trainer in trainers:
            _make_local(trainer, bundle if any(trainer is one for one in shipped) else None)
    if bundle is None:
        return
    from .left_out import left_out, left_out_field

    skipped = left_out(bundle)
    if dry_run:
        say(_text(bundle, "dry run: not sent, and not in the job shown", skipped))
        for trainer in shipped:
            for field in ("pythonPath", "requirements"):  # they go with code
                trainer.pop(field, None)
        return
    with bar(bundle.manifest.total_bytes) as progress:
        sent = calls.send_code(bundle, project=project, progress=progress)
    say(_text(bundle, f"{size_text(sent)} sent" if sent else "nothing sent", skipped))
    for trainer in shipped:
        trainer["code"] = bundle.digest
        if skipped:
            trainer["leftOut"] = left_out_field(skipped)
    for text in dict.fromkeys(environment.says for environment in environments if environment.says):
        say(f"environment: {text}")
    for warning in dict.fromkeys(warning for environment in environments for warning in environment.warnings):
        calls.on_warning(warning)


def _give_environments(specs: Sequence[dict[str, Any]], bundle: Bundle, *, here: bool) -> list[Environment]:
    """Write into jobs' specs what they get of the environment they are submitted from, but for what they say."""
    from stoker.client.environment.environments import Environments

    environments, given = Environments(bundle), []
    for spec in specs:
        trainer = spec["trainer"]
        start = trainer.get("workingDir")
        if "requirements" in trainer:
            found = environments.installed(trainer["command"], str(trainer["requirements"]))
        elif here and "image" not in trainer:
            found = environments.here(trainer["command"], start if isinstance(start, str) else "")
        else:
            found = environments.elsewhere(trainer["command"])
        trainer["command"] = list(found.command)
        if found.python_path:
            trainer.setdefault("pythonPath", list(found.python_path))
        if found.variables and isinstance(spec.get("env", {}), dict):
            spec["env"] = found.variables | spec.get("env", {})
        given.append(found)
    return given


def _command_of(spec: Any) -> dict[str, Any] | None:
    """The trainer of a job that runs a command; what is not a list of strings the server refuses and explains."""
    trainer = spec.get("trainer") if isinstance(spec, dict) else None
    command = trainer.get("command") if isinstance(trainer, dict) else None
    is_one = isinstance(command, list) and command and all(isinstance(word, str) for word in command) and command[0]
    return trainer if is_one else None


def _on_this_machine(calls: Calls) -> bool:
    """The server is a `stoker up` of this machine; a cluster's may be here by a port-forward, its workers are not."""
    if calls.endpoint.local or not calls.endpoint.loopback:
        return calls.endpoint.local
    try:
        return bool(calls.version().get("mode") != "Cluster")
    except ApiError:
        return True


def _make_local(trainer: dict[str, Any], bundle: Bundle | None) -> None:
    """On this very machine, a command means the user's own program, and without code the user's own folder too."""
    with_code = bundle is not None or "code" in trainer
    if "image" in trainer or ("workingDir" in trainer and not with_code):
        return
    program = trainer["command"][0]
    if "requirements" in trainer and "/" not in program:
        return  # of the environment that is made for it
    if with_code and "/" in program and (bundle is None or _in_bundle(trainer, bundle) is not None):
        return
    found = shutil.which(program)
    if found is None:
        raise BadInput(f"there is no program {program!r} here; give its path, or install it")
    # abspath, not resolve(): a virtual environment's python is a link, and is only itself by that name.
    trainer["command"] = [os.path.abspath(found), *trainer["command"][1:]]  # noqa: PTH100
    if not with_code:
        trainer["workingDir"] = _here()


def _in_bundle(trainer: dict[str, Any], bundle: Bundle) -> str | None:
    """The path of the program within the code, if that is where it is."""
    program, start = trainer["command"][0], trainer.get("workingDir", "")
    if "/" not in program or not isinstance(start, str):
        return None
    path = posixpath.normpath(posixpath.join(start, program))
    return path if path in bundle.by_path else None


def _list_of_packages(trainer: dict[str, Any], bundle: Bundle) -> str:
    """Beside the command's start first, then in the folder itself. Raises: BadInput."""
    from stoker.client.environment.environments import LISTS

    start = trainer.get("workingDir")
    places = dict.fromkeys((posixpath.normpath(start) if isinstance(start, str) and start else ".", "."))
    for place in places:
        for name in LISTS:
            path = posixpath.normpath(posixpath.join(place, name))
            if path in bundle.by_path:
                return path
    raise BadInput(
        f"--install: the folder ships neither {' nor '.join(LISTS)}; trainer.requirements names another file"
    )


def _check_program(trainer: dict[str, Any], bundle: Bundle) -> None:
    """Say before anything is sent what would else be the end of every attempt."""
    path = _in_bundle(trainer, bundle)
    if path is None:
        return
    file = bundle.by_path[path]
    if file.sha256 is not None and not file.executable:
        raise BadInput(f"{path} is not executable; run `chmod +x {path}`, or name its interpreter before it")


def _here() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise BadInput("the current folder was removed; change into another") from None


def _read(folder: str) -> Bundle:
    from .bundle import read_folder

    return read_folder(folder)


def _text(bundle: Bundle, sent: str, skipped: list[LeftOutPath]) -> str:
    from .left_out import left_out_text

    held = f"{files_text(len(bundle.manifest.files))}, {size_text(bundle.manifest.total_bytes)}"
    stays = left_out_text(skipped)
    return f"code: {held} ({sent}){f' · left out: {stays}' if stays else ''}"
