"""Whether the data that a job names is there to be used: a folder of this machine, or a name that its runtime offers.

Called by `checks.py`.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

from stoker.spec.job import TrainingJobSpec
from stoker.spec.runtime import DEFAULT_RUNTIME, TrainingRuntime, TrainingRuntimeSpec, missing_data
from stoker_api.problems import invalid

_PACKAGES = {"http": "fsspec", "https": "fsspec", "s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}
LOOK_S = 2.0
"""A file system that does not answer holds up no submit for longer; the worker finds out."""


async def check_local_data(spec: TrainingJobSpec) -> None:
    """On one machine. Raises: Problem."""
    for number, volume in enumerate(spec.data):
        pointer = f"/spec/data/{number}/path"
        if volume.path is None:
            continue
        if missing_data((volume,), None):
            raise invalid(
                pointer, f"{volume.path!r} is a name, which no runtime offers on one machine; give an absolute path"
            )
        path = Path(volume.path, volume.sub_path)
        if not await _is_there(path):
            raise invalid(pointer, f"there is no {str(path)!r} on the server's machine")


def check_schemes(spec: TrainingJobSpec) -> None:
    """On one machine: whether what fetches, in our own environment, can talk to the stores that urls name. (A cluster's
    image has all.) Raises: Problem."""
    for number, volume in enumerate(spec.data):
        package = _PACKAGES.get((volume.url or "").partition("://")[0])
        if package is not None and find_spec(package) is None:
            scheme = (volume.url or "").partition("://")[0]
            raise invalid(
                f"/spec/data/{number}/url",
                f"{scheme}:// needs the package {package}, which is not installed beside this server; "
                "install Stoker with its extra `stores` there, or give an https:// url (stores sign such for a while)",
            )


def check_offered_data(spec: TrainingJobSpec, runtime: TrainingRuntime | None) -> None:
    """On a cluster; `runtime` None: the built-in one, which offers none. Raises: Problem."""
    name, offers = (
        (DEFAULT_RUNTIME, TrainingRuntimeSpec()) if runtime is None else (runtime.metadata.name, runtime.spec)
    )
    missing = missing_data(spec.data, offers)
    if not missing:
        return
    names = ", ".join(sorted(one.name for one in offers.data)[:10])
    number = next(number for number, volume in enumerate(spec.data) if volume.path == missing[0])
    raise invalid(
        f"/spec/data/{number}/path",
        f"the runtime {name!r} offers no data {missing[0]!r}; on a cluster path is a name, and it offers: "
        f"{names or 'none'}",
    )


async def _is_there(path: Path) -> bool:
    try:
        return await asyncio.wait_for(asyncio.to_thread(path.exists), LOOK_S)
    except TimeoutError:
        return True
