"""A control plane of its own: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on free ports.

RBAC and admission are on; every user has a token of this bed only. Several run side by side. Loopback needs no root;
`netns` puts it into a network namespace for real nodes. Its parts can be stopped, killed and frozen one by one. Never
waits without a time-out, and leaves no process and no folder behind (`close`, and a guard where the owner is killed).
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import shutil
import socket
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.testbed import arguments, build, identities
from tests.support.testbed.arguments import API, CONTROLLERS, ETCD, LOOPBACK, SCHEDULER, Layout
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.errors import BedError
from tests.support.testbed.guard import Guard
from tests.support.testbed.parts import Part, kill_all, make_bed, until

READY_TIMEOUT_S = 60.0
_TRIES = 3


class ControlPlane(Cluster):
    """`with ControlPlane() as plane:` starts one and closes it; `plane.parts["etcd"].kill()` breaks it.

    folder: where certificates, logs and etcd's data lie; a temporary one by default.
    controllers, scheduler: whether these parts run (service accounts and garbage collection; binding of pods).
    users: further users, name → groups, beside admin, alice (team-a) and bob (team-b).
    etcd_on_disk: etcd's data in the folder and synced, for tests of crashes; in memory and unsynced otherwise.
    args: further arguments by part's name.
    guarded: close it too when this process is killed.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        controllers: bool = True,
        scheduler: bool = True,
        users: Mapping[str, Sequence[str]] | None = None,
        etcd_on_disk: bool = False,
        args: Mapping[str, Sequence[str]] | None = None,
        address: str = LOOPBACK,
        netns: str = "",
        guarded: bool = True,
    ) -> None:
        self._programs = build.built("control-plane")
        self.folder = folder or Path(tempfile.mkdtemp(prefix="stoker-bed-"))
        make_bed(self.folder)
        self.address = address
        self.parts: dict[str, Part] = {}
        self._users = identities.USERS | {name: tuple(groups) for name, groups in (users or {}).items()}
        self._controllers, self._scheduler, self._etcd_on_disk = controllers, scheduler, etcd_on_disk
        self._args = {name: list(more) for name, more in (args or {}).items()}
        self._prefix = ["nsenter", f"--net=/run/netns/{netns}"] if netns else []
        self._guarded, self._guard = guarded, None if not guarded else Guard(self.folder)
        super().__init__(self.folder / "admin.kubeconfig", "")

    def __enter__(self) -> ControlPlane:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def attach(cls, folder: Path) -> ControlPlane | None:
        """The control plane that runs in the folder, started by another process; None where there is none."""
        try:
            record = json.loads((folder / "plane.json").read_text())
        except FileNotFoundError:
            return None
        plane = cls(folder, address=record["address"], guarded=False)
        plane.url = record["url"]
        plane.parts = {name: Part(folder, name) for name in record["parts"]}
        return plane if plane.parts[API].pid else None

    def start(self) -> ControlPlane:
        """Starts all parts and waits until the API server is ready and the default service account is made.

        Cost: 7 s on 2 cores. Raises: BedError with the end of the log of the part that failed; all is stopped then.
        """
        for left in reversed(range(_TRIES)):
            try:
                self._start_parts()
                break
            except BaseException as error:
                self._kill_parts()
                # Ports are free when picked, not when bound: someone else may come between.
                if not left or "address already in use" not in str(error):
                    self._release_guard()
                    raise
        return self

    def close(self) -> None:
        """Kills every process of the bed and removes its folder. May be called twice.

        Killed, not stopped: nothing is to be kept, and an API server whose etcd is gone takes minutes to stop.
        """
        self._kill_parts()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._release_guard()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until /readyz says ok. Raises: BedError with the end of the API server's log."""
        self.parts[API].until(lambda: self.get("/readyz") == "ok", "/readyz of the API server", timeout_s)

    def add_part(self, name: str, *argv: str) -> Part:
        """Starts one more program beside the control plane's own."""
        self.parts[name] = Part(self.folder, name, list(argv), prefix=self._prefix)
        self.parts[name].start()
        self._write_record()
        return self.parts[name]

    def token(self, user: str) -> str:
        tokens: dict[str, str] = json.loads((self.folder / "tokens.json").read_text())
        return tokens[user]

    def kubeconfig_for(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"

    def get(self, path: str, *, user: str = "admin") -> str:
        """The body of a GET, whatever its status; empty where no one answers within 5 s."""
        context = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the bed's CA is as plain as real clusters' often are
        return _get(self.url, path, context, {"Authorization": f"Bearer {self.token(user)}"})

    def _start_parts(self) -> None:
        shutil.rmtree(self.folder / "pki", ignore_errors=True)
        make_bed(self.folder)
        at = Layout(self.folder, self.address, *free_ports(5))
        self.url = at.url
        identities.write(at, self._users)
        etcd = self._part(ETCD, arguments.etcd(at, self._etcd_data(), synced=self._etcd_on_disk))
        server = self._part(API, arguments.api_server(at))
        etcd.start()
        server.start()
        self.wait_ready()  # the controller manager exits where RBAC's bootstrap is not done
        if self._controllers:
            self._part(CONTROLLERS, arguments.controller_manager(at, kubelets=bool(self._prefix))).start()
        if self._scheduler:
            self._part(SCHEDULER, arguments.scheduler(at)).start()
        self._write_record()
        if self._controllers:
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self.parts[CONTROLLERS].until(lambda: '"uid"' in self.get(account), "the default account", READY_TIMEOUT_S)
        if self._scheduler and not self._prefix:  # in a namespace its health can't be asked from here
            health = f"https://{LOOPBACK}:{at.scheduler}"
            self.parts[SCHEDULER].until(lambda: _get(health, "/readyz") == "ok", "the scheduler", READY_TIMEOUT_S)

    def _part(self, name: str, argv: list[str]) -> Part:
        argv = [str(self._programs[name]), *argv, *self._args.get(name, [])]
        self.parts[name] = Part(self.folder, name, argv, prefix=self._prefix)
        return self.parts[name]

    def _write_record(self) -> None:
        record = {"address": self.address, "url": self.url, "parts": list(self.parts)}
        (self.folder / "plane.json").write_text(json.dumps(record))

    def _kill_parts(self) -> None:
        kill_all(self.folder)
        for part in self.parts.values():
            part.reap()
        shutil.rmtree(self._etcd_data(), ignore_errors=True)

    def _release_guard(self) -> None:
        if self._guard is not None:
            self._guard.release()
            self._guard = None

    def _etcd_data(self) -> Path:
        return self.folder / "etcd-data" if self._etcd_on_disk else memory_folder(self.folder)


def memory_folder(folder: Path) -> Path:
    """Where etcd's data of the bed in `folder` lies when it need not survive a crash: in memory, where there is any."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        return folder / "etcd-data"
    bed = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]  # two beds may have folders of one name
    return memory / f"stoker-etcd-{bed}"


def free_ports(count: int) -> list[int]:
    """Ports on loopback that no one holds now.

    Below the range the kernel picks from: a client that retries a closed port in that range can connect to itself.
    """
    found: list[int] = []

    def one_more() -> bool:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            found.extend([port] if port not in found else [])
        return len(found) == count

    until(one_more, f"{count} free ports between 20000 and 32000", 10, every_s=0)
    return found


def _get(url: str, path: str, context: ssl.SSLContext | None = None, headers: Mapping[str, str] | None = None) -> str:
    if context is None:  # a part's own health, under a certificate it made for itself
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(url.removeprefix("https://"), context=context, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path, headers=dict(headers or {}))
        return connection.getresponse().read().decode()
    return ""


__all__ = ["API", "CONTROLLERS", "ETCD", "SCHEDULER", "BedError", "ControlPlane", "free_ports", "memory_folder"]
