"""The tests' own HTTP server: a client that leaves in the middle is no error, a handler that breaks is one."""

import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from tests.support.local_server import LocalServer


@pytest.mark.parametrize(
    ("sent", "written"), [(b"GET / HT", False), (b"GET / HTTP/1.0\r\n\r\n", True)], ids=["reset", "handler breaks"]
)
def test_only_a_handlers_own_errors_are_written(sent, written, capsys):
    accepted = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def setup(self):
            super().setup()
            accepted.set()

        def do_GET(self):
            raise ValueError("broken")

    server = LocalServer(Handler)
    server.daemon_threads = False  # closing waits for the handler
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    with socket.create_connection(server.server_address) as client:
        client.sendall(sent)
        assert accepted.wait(10)
        if written:
            client.recv(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
    server.shutdown()
    thread.join()
    server.server_close()
    said = capsys.readouterr().err
    assert "ValueError: broken" in said if written else said == ""
