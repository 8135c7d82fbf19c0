"""Names of jobs for shell completion: the one call that must answer before a person looks up.

Standard library only, as httpx and the models take longer to import than the whole answer may. Never raises.
"""

from __future__ import annotations

import http.client
import json
from urllib.parse import quote, urlsplit

from stoker.client.config import find_server
from stoker.client.errors import StokerError

WITHIN_S = 0.5
MOST = 200


def job_names(server: str | None, token: str | None, project: str | None) -> list[str]:
    """The newest jobs' names; empty when there is no server or it is slow."""
    try:
        endpoint = find_server(server, token)
        parts = urlsplit(endpoint.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=WITHIN_S)
        try:
            connection.request(
                "GET",
                f"{parts.path}/v1/projects/{quote(project or 'default', safe='')}/jobs?limit={MOST}",
                headers={"Authorization": f"Bearer {endpoint.token}"} if endpoint.token else {},
            )
            page = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return [str(item["metadata"]["name"]) for item in page["items"]]
    except (StokerError, OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []
