"""Whom we believe when we connect: the way to the api and the receiver of pushes alike. Imported where one is asked.

Never serves: our own certificate is `serving.door`'s.
"""

from __future__ import annotations

import ssl
from pathlib import Path


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the certificates in the file, without one the system's. Raises: OSError, ssl.SSLError."""
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13's default profile refuses authorities that clusters really have (no key usage).
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
