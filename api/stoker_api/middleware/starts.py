"""Requests start a few at a time: a wave of them does not stop those that are under way.

A thousand heads that arrive together would else all be worked on before anything else is. Streams have a lane of their
own, since they come in waves; probes of health never wait. Never refuses anything.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from stoker_api.rounds import Rounds

_HEALTH = frozenset({"/livez", "/readyz"})
_STREAMS = ("/logs", "/events")


class Starts:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._streams, self._others = Rounds(1), Rounds(3)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _HEALTH:
            await (self._streams if scope["path"].endswith(_STREAMS) else self._others).turn()
        await self._app(scope, receive, send)
