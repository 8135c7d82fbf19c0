"""Data that workers wait for: fetched by a child process of ours (`stoker.fetch`), one for each such worker.

Owns the children and what came of them. A child ends with us: its standard input is our pipe. Called by `life` only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.spec.data import FETCH_ENV, FETCH_S, FETCH_VARIABLE
from stoker.store.seam import Seam

_HOST_ENV = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
_ANSWER_BYTES = 1 << 20


@dataclass
class Fetch:
    """One worker's. `done`: either `places` (name → folder) or `error` says what came of it."""

    task: asyncio.Task[None] | None = None
    done: bool = False
    places: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class DataFetches:
    """`ready` is called with a pod's uid when its data is there, or can't be had."""

    def __init__(self, cache: Path, host_env: Mapping[str, str], seam: Seam, ready: Callable[[str], None]) -> None:
        self._cache, self._host_env, self._seam, self._ready = cache, host_env, seam, ready
        self._fetches: dict[str, Fetch] = {}

    def get(self, pod_uid: str, order: str, env: Mapping[str, str]) -> Fetch:
        """How far it is; it begins with the first call. `env`: the job's own variables and secrets."""
        found = self._fetches.get(pod_uid)
        if found is None:
            found = self._fetches[pod_uid] = Fetch()
            found.task = asyncio.create_task(self._fetch(found, pod_uid, order, env))
        return found

    def drop(self, pod_uid: str) -> None:
        """It is not wanted any more, or was taken."""
        found = self._fetches.pop(pod_uid, None)
        if found is not None and found.task is not None:
            found.task.cancel()

    def close(self) -> None:
        for pod_uid in list(self._fetches):
            self.drop(pod_uid)

    async def _fetch(self, found: Fetch, pod_uid: str, order: str, env: Mapping[str, str]) -> None:
        try:
            answer = await self._run(pod_uid, order, env)
            found.error = str(answer.get("error", ""))
            places = answer.get("places", {})
            found.places = {str(name): str(place) for name, place in places.items()} if isinstance(places, dict) else {}
        except (OSError, ValueError, TimeoutError) as error:
            found.error = str(error) or type(error).__name__
        found.done = True
        self._ready(pod_uid)

    async def _run(self, pod_uid: str, order: str, env: Mapping[str, str]) -> dict[str, object]:
        """Raises: OSError, ValueError, TimeoutError."""
        ours = {name: self._host_env[name] for name in _HOST_ENV if name in self._host_env}
        ours |= {name: value for name, value in env.items() if name in FETCH_ENV}
        ours[FETCH_VARIABLE] = json.dumps({**json.loads(order), "root": str(self._cache)})
        ours["STOKER_POD_UID"] = pod_uid  # what is left of it is found by this
        with self._seam.crossing("agent.fetch", pod_uid):
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-m", "stoker.fetch",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env=ours, start_new_session=True,
            )  # fmt: skip
        assert child.stdout is not None
        try:
            async with asyncio.timeout(FETCH_S + 60):
                text = await child.stdout.read(_ANSWER_BYTES)
                await child.wait()
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        answer = json.loads(text or b'{"error": "what fetches it was killed"}')
        if not isinstance(answer, dict):
            raise ValueError("what fetches it gave no answer")
        return answer
