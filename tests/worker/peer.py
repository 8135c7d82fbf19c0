"""The api's end of a session: a WebSocket as the `websockets` package has it, on a connection of the test's server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import threading

from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

SUBPROTOCOL = "v1.session.stoker.dev"
STDIN, STDOUT, STDERR, RESIZE, END, EXIT = range(6)
OVER = (None, None)


class Peer:
    """Messages come in through `next`; `gate` holds up the reading."""

    def __init__(self, handler):
        self.sock = handler.connection
        self.protocol = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=None)
        lines = [
            handler.raw_requestline.decode().strip(),
            *(f"{name}: {value}" for name, value in handler.headers.items()),
        ]
        self.protocol.receive_data("\r\n".join([*lines, "", ""]).encode())
        (request,) = self.protocol.events_received()
        self.lock = threading.Lock()
        self.messages: queue.Queue = queue.Queue()
        self.gate = threading.Event()
        self.gate.set()
        self.protocol.send_response(self.protocol.accept(request))
        self._flush()

    def serve(self):
        """Runs in the server's thread until the connection is over."""
        pieces = []
        while True:
            self.gate.wait(60)
            try:
                data = self.sock.recv(1 << 16)
            except OSError:
                data = b""
            with self.lock:
                if data:
                    self.protocol.receive_data(data)
                else:
                    self.protocol.receive_eof()
                events = self.protocol.events_received()
                with contextlib.suppress(OSError):
                    self._flush()
            for frame in events:
                if isinstance(frame, Frame) and frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    pieces.append(frame)
                    if frame.fin:
                        self.messages.put((pieces[0].opcode, b"".join(bytes(piece.data) for piece in pieces)))
                        pieces = []
            if not data:
                self.messages.put(OVER)
                return

    @property
    def close_code(self):
        return self.protocol.close_code

    def text(self, document):
        self._do(lambda: self.protocol.send_text(json.dumps(document).encode()))

    def binary(self, data):
        self._do(lambda: self.protocol.send_binary(data))

    def send(self, channel, data=b""):
        self.binary(bytes([channel]) + data)

    def close(self):
        self._do(lambda: self.protocol.send_close(1000))

    def next(self, timeout_s=20):
        return self.messages.get(timeout=timeout_s)

    def document(self):
        """The next message, which must be text."""
        kind, data = self.next()
        assert kind is Opcode.TEXT, (kind, data)
        return json.loads(data)

    def begin(self, **request):
        self.text(request)
        return self.document()

    def exec(self, *argv, tty=False, **more):
        assert self.begin(kind="exec", argv=argv, tty=tty, columns=80, rows=24, term="xterm", **more) == {"ready": True}
        return self

    def until(self, channel, text):
        """What came on `channel` up to and with `text`."""
        said = b""
        while text not in said:
            try:
                kind, data = self.next()
            except queue.Empty:
                raise AssertionError(f"{text!r} did not come in {said!r}") from None
            assert kind is Opcode.BINARY and data[0] != EXIT, (said, kind, data)
            if data[0] == channel:
                said += data[1:]
        return said

    def rest(self):
        """(stdout, stderr, exit) to the end."""
        said = {STDOUT: bytearray(), STDERR: bytearray(), EXIT: bytearray()}
        while (message := self.next()) != OVER:
            assert message[0] is Opcode.BINARY and len(message[1]) <= 1 << 16
            said[message[1][0]] += message[1][1:]
        return bytes(said[STDOUT]), bytes(said[STDERR]), json.loads(bytes(said[EXIT]))

    def _do(self, step):
        with self.lock:
            step()
            self._flush()

    def _flush(self):
        for data in self.protocol.data_to_send():
            if data:
                self.sock.sendall(data)


def sha256(data):
    return hashlib.sha256(data).hexdigest()
