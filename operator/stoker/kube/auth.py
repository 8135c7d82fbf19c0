"""Where the API server is and who we are to it: kubeconfig or the pod's own service account.

Owns the `kubernetes` package's configuration and the HTTP session made from it; the only file that imports it, and
only once a cluster is really used (0.4 s, 43 MiB). Credentials that change (a rotated token file, an exec plugin's
token) are read anew when they are a minute old or the server refuses them. Called by `client.KubeClient`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from stoker.store.clock import Clock
from stoker.store.port import Unavailable

logger = logging.getLogger(__name__)

_FRESH_S = 60.0
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiServer:
    """The API server's address, a session to it, and the headers that say who we are."""

    def __init__(
        self,
        clock: Clock,
        kubeconfig: str | None,
        context: str | None,
        service_account: Path = _SERVICE_ACCOUNT,
        *,
        anonymous: bool = False,
    ) -> None:
        """`kubeconfig` None: `$KUBECONFIG`, else the pod's service account, else `~/.kube/config`.

        `anonymous`: no credentials of our own are sent, by TLS neither (a certificate would outrank a caller's token).
        """
        self._anonymous = anonymous
        self._clock, self._kubeconfig, self._context = clock, kubeconfig, context
        self._token_file, self._ca_file = service_account / "token", service_account / "ca.crt"
        self._rest: Any = None
        self._authorization = ""
        self._read_at = 0.0
        self._in_cluster = False
        self.url = ""
        self.session: aiohttp.ClientSession | None = None
        self.proxy: str | None = None
        self.server_hostname: str | None = None

    async def open(self) -> None:
        """Raises: Unavailable when there is no configuration, or none that can be read."""
        from kubernetes.aio.client.rest import RESTClientObject

        configuration = await self._load()
        configuration.connection_pool_maxsize = 0  # `limit` says how many; watches and logs come on top
        configuration.client_session_kwargs = _session_settings()
        self.url = configuration.host.rstrip("/")
        self.proxy = configuration.proxy or _proxy_from_environment(self.url)
        self.server_hostname = configuration.tls_server_name
        self._rest = RESTClientObject(configuration)
        self.session = self._rest._create_pool_manager()

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()
            self.session = None

    async def headers(self) -> dict[str, str]:
        """Raises: Unavailable."""
        if self._in_cluster and self._clock.monotonic() - self._read_at > _FRESH_S:
            await self.renew()
        return {"Authorization": self._authorization} if self._authorization else {}

    async def renew(self) -> bool:
        """Read the credentials anew. Returns: whether they changed. Raises: Unavailable."""
        before = self._authorization
        configuration = await self._load()
        if configuration.cert_file and self._rest is not None:
            self._rest.ssl_context.load_cert_chain(configuration.cert_file, configuration.key_file)
        return self._authorization != before

    async def _load(self) -> Any:
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import ConfigException, load_kube_config
        from kubernetes.aio.config.incluster_config import InClusterConfigLoader

        configuration = Configuration()
        # From Python 3.13 on the default is RFC 5280's strict profile, which refuses certificate authorities that real
        # clusters have (no key usage, no key identifier). Chain, name and dates are verified as kubectl does.
        configuration.disable_strict_ssl_verification = True
        path = self._kubeconfig or os.environ.get("KUBECONFIG")
        self._in_cluster = path is None and self._token_file.exists()
        where = "the pod's service account" if self._in_cluster else f"the kubeconfig {path or '~/.kube/config'}"
        try:
            if self._in_cluster:
                InClusterConfigLoader(
                    token_filename=str(self._token_file), cert_filename=str(self._ca_file), try_refresh_token=False
                ).load_and_set(configuration)
            else:
                _must_exist(path)
                await load_kube_config(
                    config_file=path,
                    context=self._context,
                    client_configuration=configuration,
                    persist_config=False,
                )
        except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(f"can't read {where}: {error or type(error).__name__}") from error
        if self._anonymous:
            configuration.api_key = {}
            configuration.cert_file = configuration.key_file = None
            configuration.username = configuration.password = None
        self._authorization = configuration.api_key.get("BearerToken", "").strip()
        if self._authorization.startswith("bearer "):
            self._authorization = "Bearer " + self._authorization.removeprefix("bearer ")
        self._read_at = self._clock.monotonic()
        return configuration


def _must_exist(path: str | None) -> None:
    """Raise if none of the files exists: the library skips missing files and fails later with another error."""
    paths = [part for part in path.split(os.pathsep) if part] if path else ["~/.kube/config"]
    if not any(Path(part).expanduser().is_file() for part in paths):
        raise FileNotFoundError(
            f"no such file: {', '.join(paths)}; set KUBECONFIG, or run in a pod with a service account token"
        )


def _session_settings() -> dict[str, Any]:
    return {
        "trust_env": False,  # asked once, at the start, instead of with every request
        "cookie_jar": aiohttp.DummyCookieJar(),
        "auto_decompress": False,
        "headers": {"Accept-Encoding": "identity", "User-Agent": "stoker"},
        "raise_for_status": False,
    }


def _proxy_from_environment(url: str) -> str | None:
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)
