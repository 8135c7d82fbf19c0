"""The server's certificate, read anew when its files change: who renews one (cert-manager, say) only replaces files.

Owns the TLS settings. Called by `main.py`.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from stoker.store.clock import Clock

log = logging.getLogger(__name__)

LOOK_EVERY_S = 20.0
_Stamp = tuple[tuple[int, int, int], ...]


@dataclass
class Certificate:
    """Raises: OSError, ssl.SSLError when the files can't be used at the start; later ones are logged and left aside."""

    cert: Path
    key: Path
    context: ssl.SSLContext = field(init=False)
    """Give it to the server; new connections meet the newest certificate."""
    _seen: _Stamp = field(init=False)

    def __post_init__(self) -> None:
        self._seen = self._stamp()
        self.context = self._fresh()

    async def follow(self, clock: Clock, every_s: float = LOOK_EVERY_S) -> None:
        """Keep the context current until cancelled."""
        while True:
            await clock.sleep(every_s)
            self.refresh()

    def refresh(self) -> None:
        """Read the files again if they changed."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            self._fresh()  # a certificate without its key would break the context that is in use
            self.context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            log.error("the certificate in %s is not read again: %s", self.cert, error)
            return
        self._seen = stamp
        log.info("the certificate in %s was renewed", self.cert)

    def _fresh(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self.cert, self.key)
        return context

    def _stamp(self) -> _Stamp:
        found = (path.stat() for path in (self.cert, self.key))
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)
