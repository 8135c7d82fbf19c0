"""A session with a pod that has a job's files: the api's own, one request after the other.

Owns the order of messages in it. A session is opened as for `exec`, by the pod that connects (`sessions/registry.py`);
here the api itself is the caller. Called by `remote.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from starlette.websockets import WebSocketDisconnect

from stoker.spec.job import TrainingJob
from stoker.spec.pod import Pod
from stoker_api.ports import SessionCaller
from stoker_api.problems import Problem, ProblemCode
from stoker_api.sessions.registry import Session, Sessions
from stoker_api.sessions.relay import Side

COME_S = 12.0
"""How long a pod may take to come: it asks every 5 s (`stoker_worker.alive`), and a request may take 30 s in all."""
CALL_S = 15.0
"""For one answer."""
PIECE, END = range(2)
MOST_ANSWER_BYTES = 16 << 20


class ChannelLost(Exception):
    """The pod is gone, or does not answer as it should; the text says why."""


class FileChannel:
    """One session; `close` in any case."""

    def __init__(self, sessions: Sessions, session: Session, side: Side) -> None:
        self._sessions, self.session, self._side = sessions, session, side
        self.usable = True
        """Nothing is under way, and the pod is there."""
        session.end_order.add_done_callback(
            lambda _: sessions.remove(session)
        )  # its pod has ended, or the server stops

    @classmethod
    async def open(
        cls, sessions: Sessions, caller: SessionCaller | None, job: TrainingJob, pod: Pod, worker: int
    ) -> FileChannel:
        """Waits until the pod has come. Raises: ChannelLost, Problem."""
        session = sessions.create(job, pod, worker, f"files of {job.key}")
        try:
            side = await _met(session, caller)
            await side.send(json.dumps({"kind": "files"}))
            async with asyncio.timeout(CALL_S):
                answer = json.loads(await side.receive())
            if answer.get("ready") is not True:
                raise ChannelLost(str(answer.get("message") or "it can't read its files")[:300])
            return cls(sessions, session, side)
        except (WebSocketDisconnect, TimeoutError, ValueError, AttributeError):
            sessions.remove(session)
            raise ChannelLost("it broke off") from None
        except BaseException:
            sessions.remove(session)
            raise

    @property
    def over(self) -> bool:
        return not self.usable or self.session.end_order.done() or self._side.lost.is_set()

    async def ask(self, **request: Any) -> tuple[dict[str, Any], bytes]:
        """The answer's last message and the bytes before it. Raises: ChannelLost, Problem (NoFile)."""
        self.usable = False
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(CALL_S):
                await self._side.send(json.dumps(request).encode())
                last = await self._collect(pieces)
        except WebSocketDisconnect:
            raise ChannelLost("it has ended") from None
        except TimeoutError:
            raise ChannelLost("its disk does not answer") from None
        except ValueError:
            raise ChannelLost("its answer is not valid") from None
        self.usable = True
        if "error" in last:
            why = str(last["error"])[:500]
            if last.get("code") == "NoFile":
                raise Problem(ProblemCode.NO_FILE, f"{why[:1].upper()}{why[1:]}; `stoker files JOB` lists them.")
            raise ChannelLost(why)
        return last, b"".join(pieces)

    async def _collect(self, pieces: list[bytes]) -> dict[str, Any]:
        """Raises: WebSocketDisconnect, ValueError."""
        size = 0
        while True:
            message = await self._side.receive()
            if not isinstance(message, bytes) or not message or message[0] not in (PIECE, END):
                raise ValueError("no answer")
            if message[0] == END:
                last = json.loads(message[1:])
                if not isinstance(last, dict):
                    raise ValueError("no answer")
                return last
            size += len(message) - 1
            if size > MOST_ANSWER_BYTES:
                raise ValueError("endless")
            pieces.append(message[1:])

    async def close(self) -> None:
        self.usable = False
        self._sessions.remove(self.session)  # whose worker's side then closes its socket


async def _met(session: Session, caller: SessionCaller | None) -> Side:
    """The pod's side, once it came. Raises: ChannelLost."""
    session.calling = True
    try:
        if caller is not None:
            await caller.call(session.pod_uid, session.id)
        waited: set[asyncio.Future[Any]] = {session.came, session.end_order}
        await asyncio.wait(waited, timeout=COME_S, return_when=asyncio.FIRST_COMPLETED)
        if session.end_order.done():
            raise ChannelLost(session.end_order.result().reason)
        if not session.came.done():
            raise ChannelLost(f"it did not come within {COME_S:g} s")
        return session.came.result()
    except OSError as error:
        raise ChannelLost(f"it can't be called: {error.strerror}") from None
    finally:
        session.calling = False
        if caller is not None:
            with contextlib.suppress(OSError):
                await caller.withdraw(session.pod_uid, session.id)
