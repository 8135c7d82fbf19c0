"""A worker's container without a container: the supervisor in pod mode, and an api that takes its log."""

from __future__ import annotations

import json
import os
import queue
import random
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import stoker_worker
from stoker.spec.worker import ExitRecord
from stoker_api.worker_logs.log_file import Gap, LogOwner, StoredLog
from tests.support.local_server import LocalServer

from .peer import Peer

VERSIONS = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


def _version(path):
    return tuple(map(int, path.parts[-3].split(".")[:2]))


PYTHONS = [str(p) for p in sorted(VERSIONS.glob("3.*/bin/python3"), key=_version) if _version(p) >= (3, 8)]
"""What is installed here of every Python that a worker may have."""

PROGRAM = Path(stoker_worker.__file__).with_name("__main__.py")
RANK_1_OF_3 = {
    "RANK": "1",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "3",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "3",
    "PET_NNODES": "3",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "2",
}
"""What a user's command has of torchrun's environment in worker 1 of 3, which has two GPUs."""


class PodWorker:
    """One supervisor in pod mode, in folders below `folder`."""

    def __init__(self, folder, uid):
        self.folder, self.uid = folder, uid
        self.run_dir = folder / "run"
        self.token_file = folder / "token"
        self.token_file.write_text("token-1\n")
        self.termination_log = folder / "termination-log"
        self.process = None

    def env(self, api=None, **more):
        env = {
            "PATH": os.environ["PATH"],
            "STOKER_POD_UID": self.uid,
            "STOKER_POD_NAME": "job-1-0",
            "STOKER_PROJECT": "default",
            "STOKER_JOB": "job",
            "STOKER_JOB_UID": "job-uid",
            "STOKER_ATTEMPT": "1",
            "STOKER_WORKER": "0",
            "STOKER_WORKERS": "1",
            "STOKER_RANKS": "1",
            "STOKER_GRACE_SECONDS": "10",
            "STOKER_GPUS": "0",
            "STOKER_CPU_MILLI": "2000",
            "STOKER_CHECKPOINT_DIR": str(self.folder / "volume" / "checkpoints"),
            "STOKER_OUTPUT_DIR": str(self.folder / "volume" / "output"),
            "STOKER_RUN_DIR": str(self.run_dir),
            "STOKER_TERMINATION_LOG": str(self.termination_log),
            "STOKER_TOKEN_FILE": str(self.token_file),
        }
        if api is not None:
            env["STOKER_API_URL"] = api if isinstance(api, str) else api.url
        return {name: str(value) for name, value in {**env, **more}.items() if value is not None}

    def start(self, argv, *, api=None, env=None, stdout=None, entry=None, cwd="/"):
        own = None if stdout is not None else (self.folder / "stdout").open("wb")
        entry = entry or [sys.executable, "-I", "-S", str(PROGRAM), "--pod", "--"]
        self.process = subprocess.Popen(
            [*map(str, entry), *map(str, argv)],
            env=self.env(api, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=own or stdout,
            start_new_session=True,
            cwd=cwd,
        )
        if own is not None:
            own.close()
        return self

    def python(self, script, *args, **how):
        return self.start([sys.executable, "-c", script, *args], **how)

    def finish(self, timeout_s=60):
        """The exit record as the kubelet hands it on, by the spec's own model."""
        self.code = self.process.wait(timeout_s)
        record = ExitRecord.model_validate_json(self.termination_log.read_bytes())
        assert self.code == record.exit_code
        return record

    @property
    def stdout(self):
        return (self.folder / "stdout").read_bytes()


class LogApi:
    """A small real api over the product's own storage, with faults to order.

    `plan(n)` says what becomes of the n-th log post: None (taken), a status (refused), "cut" (part of the body is kept,
    then the connection breaks), "deaf" (taken, but the answer never comes through). `word` goes into the answers to
    logs, and is the answer to a worker that asks: a document, or a status. `code(handler, n)` answers the n-th request
    for code. The peers of sessions come in through `peers`.
    """

    def __init__(self, folder, port=0):
        self.folder = folder
        self.plan = lambda n: None
        self.tokens, self.progress, self.offsets, self.asked = [], [], [], []
        self.word = {"stop": False, "why": ""}
        self.accepts = lambda token: True
        self.posts = 0
        self.code = lambda handler, n: handler.answer(404, {})
        self.fetches = 0
        self.peers: queue.Queue[Peer] = queue.Queue()
        self.joined: list[str] = []
        self.lock = threading.Lock()
        self.random = random.Random(1)
        self.server = None
        self.open(port)

    def open(self, port):
        api = self
        if not (self.folder / "pod.json").exists():
            StoredLog.create(self.folder, "pod", LogOwner("default", "job", "job-uid", 1, 0))
        self.stored = StoredLog.load(self.folder / "pod.json")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with api.lock:
                    token = self.headers["Authorization"].removeprefix("Bearer ")
                    api.tokens.append(token)
                    if not api.accepts(token):
                        return self.answer(401, {})
                    if url.path.endswith("/progress"):
                        api.progress.append(json.loads(body))
                        return self.answer(204, None)
                    if url.path.endswith("/alive"):
                        api.asked.append((time.monotonic(), json.loads(body)))
                        status, word = (api.word, {}) if isinstance(api.word, int) else (200, api.word)
                        return self.answer(status, word)
                    return self.take(url, body)

            def do_GET(self):
                path = urlsplit(self.path).path
                with api.lock:
                    api.tokens.append(self.headers["Authorization"].removeprefix("Bearer "))
                    accepted, n = api.accepts(api.tokens[-1]), api.fetches
                    api.fetches += path.endswith("/code")
                if not accepted:
                    return self.answer(401, {})
                if path == "/v1/report/code":
                    return api.code(self, n)
                api.joined.append(path.removeprefix("/v1/report/sessions/"))
                self.close_connection = True
                peer = Peer(self)
                api.peers.put(peer)
                return peer.serve()

            def take(self, url, body):
                query = parse_qs(url.query)
                offset, lost = int(query["offset"][0]), query.get("lost") == ["true"]
                api.offsets.append(offset)
                fate = api.plan(api.posts)
                api.posts += 1
                if isinstance(fate, int):
                    return self.answer(fate, {"detail": "no"})
                if fate == "cut":
                    body = body[: api.random.randrange(len(body) + 1)]
                try:
                    held = api.stored.append(offset, body, lost=lost)
                except Gap as gap:
                    return self.answer(409, {"offset": gap.wanted})
                if fate in ("cut", "deaf"):
                    self.close_connection = True
                    return None
                return self.answer(200, {**(api.word if isinstance(api.word, dict) else {}), "offset": held})

            def answer(self, status, document):
                data = b"" if document is None else json.dumps(document).encode()
                self.send_response(status)
                if status != 204:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = LocalServer(Handler, port)
        self.port, self.url = self.server.server_port, self.server.url
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def over_tls(self, folder):
        """Speak https from here on, with a certificate of its own (`folder`/cert.pem). Returns: the URL."""
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=stoker", "-addext", "subjectAltName=IP:127.0.0.1"]
        make = ["openssl", "req", "-x509", *curve, *names, "-keyout", "key.pem", "-out", "cert.pem"]
        subprocess.run(make, cwd=folder, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        return self.url.replace("http:", "https:")

    def peer(self, timeout_s=20):
        """The next session's peer."""
        return self.peers.get(timeout=timeout_s)

    def close(self):
        if self.server is not None:
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()
            self.server = None

    @property
    def log(self):
        return self.stored.path.read_bytes()
