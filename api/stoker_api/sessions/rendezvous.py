"""How a caller and a worker meet: the caller waits, its worker is called and comes, then their messages are carried.

Owns the order of a session's steps. The routes have checked who calls and that the worker runs; from the handshake
on each failure is reported as the session's close reason. Who was in which worker, and for how long, becomes an event
on the job and a line in the log; never its contents. Called by `routes/sessions.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from stoker.spec.event import EVENTS, Event, Subject, event_about
from stoker.spec.job import JOBS
from stoker.spec.quantity import format_duration
from stoker.store.clock import Clock
from stoker.store.port import Store, StoreError
from stoker_api.metrics import ApiMetrics
from stoker_api.ports import SessionCaller

from .first_message import FirstMessage, read_first_message
from .registry import Session, Sessions
from .relay import BROKE_OFF, GOING_AWAY, NORMAL, POLICY, SessionEnd, Side, relay

log = logging.getLogger(__name__)

SUBPROTOCOL = "v1.session.stoker.dev"
_LEFT = SessionEnd(NORMAL, "the caller has left")
_WRITE_S = 5.0


class Rendezvous:
    def __init__(
        self,
        sessions: Sessions,
        audit: SessionAudit,
        caller: SessionCaller | None,
        metrics: ApiMetrics,
        clock: Clock,
    ) -> None:
        """`caller` None: workers ask (`POST /v1/report/alive`), and learn of it then."""
        self._sessions, self._audit, self._caller = sessions, audit, caller
        self._metrics, self._clock = metrics, clock

    async def client(self, socket: WebSocket, session: Session, model: type[FirstMessage]) -> None:
        """The caller's side, from its handshake to the session's end. Owns `session`."""
        gauge = self._metrics.sessions.labels(model.name)
        gauge.inc()
        try:
            client = await _accepted(socket)
            await client.close(await self._serve(client, session, model))
        except WebSocketDisconnect:
            pass
        finally:
            self._sessions.remove(session)
            gauge.dec()

    async def worker(self, socket: WebSocket, session: Session) -> None:
        """The worker's side: hands it over and waits for the end."""
        session.calling = False  # a second one is not let in
        with contextlib.suppress(WebSocketDisconnect):
            side = await _accepted(socket)
            if not session.came.done():
                session.came.set_result(side)
            await session.over.wait()
            await side.close(_LEFT)

    async def _serve(self, client: Side, session: Session, model: type[FirstMessage]) -> SessionEnd:
        outcomes = self._metrics.session_outcomes
        try:
            async with asyncio.timeout(self._sessions.settings.first_message_s):
                first = await client.receive()
            if not isinstance(first, str):
                raise ValueError("the first message is to be text")
            message = read_first_message(model, first)
        except (ValueError, TimeoutError) as error:
            outcomes.labels(model.name, "invalid").inc()
            return await _refuse(client, str(error) or "the first message did not come", POLICY)
        try:
            worker = await self._meet(client, session)
        except _NotMet as why:
            outcomes.labels(model.name, "unanswered").inc()
            return await _refuse(client, str(why), GOING_AWAY)
        outcomes.labels(model.name, "opened").inc()
        session.opened_at = self._clock.monotonic()
        self._audit.opened(session, message)
        end = BROKE_OFF
        try:
            await worker.send(message.model_dump_json())
            async with self._watched(session):
                end = await relay(client, worker, session.end_order, lambda: self._moved(session))
        except WebSocketDisconnect:
            pass  # the worker has left already
        finally:
            self._audit.closed(session, message, end)
            await worker.close(end)
        return end

    async def _meet(self, client: Side, session: Session) -> Side:
        """The worker's side. Raises: _NotMet; WebSocketDisconnect when the caller leaves."""
        session.calling = True
        if self._caller is not None:
            try:
                await self._caller.call(session.pod_uid, session.id)
            except OSError as error:
                raise _NotMet(f"worker {session.worker} can't be called: {error.strerror}") from None
        leaves = asyncio.create_task(client.receive())
        try:
            waited: set[asyncio.Future[Any]] = {session.came, session.end_order, leaves}
            settings = self._sessions.settings
            await asyncio.wait(waited, timeout=settings.come_s, return_when=asyncio.FIRST_COMPLETED)
            if session.end_order.done():
                raise _NotMet(session.end_order.result().reason)
            if leaves.done():
                leaves.result()
                raise _NotMet("nothing may be sent before the worker has answered")
            if not session.came.done():
                raise _NotMet(
                    f"worker {session.worker} did not come within {settings.come_s:g} s; if its job runs, its worker "
                    "may be cut off from the server, or older than sessions"
                )
            return session.came.result()
        finally:
            session.calling = False
            leaves.cancel()
            if self._caller is not None:
                with contextlib.suppress(OSError):
                    await self._caller.withdraw(session.pod_uid, session.id)

    def _moved(self, session: Session) -> None:
        session.moved_at = self._clock.monotonic()

    @contextlib.asynccontextmanager
    async def _watched(self, session: Session) -> AsyncIterator[None]:
        """Ends the session when nothing was sent for too long."""
        idle_s = self._sessions.settings.idle_s
        session.moved_at = self._clock.monotonic()

        async def watch() -> None:
            while (left_s := session.moved_at + idle_s - self._clock.monotonic()) > 0:
                await self._clock.sleep(left_s)
            session.end(SessionEnd(GOING_AWAY, f"nothing was sent for {idle_s:g} s"))

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()


class _NotMet(Exception):
    """Why no worker came, for the caller."""


async def _accepted(socket: WebSocket) -> Side:
    """Raises: WebSocketDisconnect when the other side has left before."""
    try:
        await socket.accept(SUBPROTOCOL)
    except OSError:
        raise WebSocketDisconnect(code=BROKE_OFF.code) from None
    return Side.of(socket)


async def _refuse(client: Side, why: str, code: int) -> SessionEnd:
    await client.send(json.dumps({"ready": False, "message": why}))
    return SessionEnd(code, why)


class SessionAudit:
    """Written beside a session, never in its way: an event that can't be written is left out, the log has the line."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._writing: set[asyncio.Task[None]] = set()

    def opened(self, session: Session, message: FirstMessage) -> None:
        self._record(session, "SessionOpened", f"{_who(session)} {message.done()} worker {session.worker}")

    def closed(self, session: Session, message: FirstMessage, end: SessionEnd) -> None:
        lasted = format_duration(max(1.0, round(self._clock.monotonic() - session.opened_at)))
        why = f": {end.reason}" if end.reason else ""
        what = f"{_who(session)}'s {message.name} session in worker {session.worker} ended after {lasted}{why}"
        self._record(session, "SessionClosed", what)

    async def written(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _record(self, session: Session, reason: str, message: str) -> None:
        log.info("job %s, session %s: %s: %s", session.job, session.id[:8], reason, message)
        event = event_about(
            Subject(kind=JOBS.kind, api_version=JOBS.api_version, key=session.job, uid=session.job_uid),
            reason,
            message,
            at=self._clock.now(),
            mark=session.id[:12],
            component="stoker-api",
        )
        task = asyncio.create_task(self._write(event))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, event: Event) -> None:
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._store.create(EVENTS, event)
        except (StoreError, TimeoutError) as error:
            log.warning("event %s could not be written: %s", event.metadata.name, error)


def _who(session: Session) -> str:
    """One line, whatever the cluster calls its users."""
    return "".join(c if c.isprintable() else "?" for c in session.who)
