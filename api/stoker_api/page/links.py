"""Where the page links to beside itself: the Grafana with Stoker's dashboards, if there is one."""

from __future__ import annotations

from urllib.parse import urlsplit


def grafana_url(text: str) -> str:
    """The address without a slash at its end; '' where there is none. Raises: ValueError.

    Only http and https: the page makes links of it.
    """
    parts = urlsplit(text)
    if text and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment):
        raise ValueError(
            f"{text!r} is no address of a Grafana; write https://grafana.example, with its path if it has one"
        )
    return text.rstrip("/")
