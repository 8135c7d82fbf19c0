"""The WebSocket of sessions alone: every cut of the stream, every frame that no server may send; and back-pressure."""

import os
import select
import socket
import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from stoker_worker import exec_session, forward
from stoker_worker import session as sessions
from stoker_worker.exec_session import Exec
from stoker_worker.fork_exec import Command
from stoker_worker.forward import Forward
from stoker_worker.session import WorkerSession
from stoker_worker.websocket import BINARY, MESSAGE_BYTES, TEXT, HandshakeRefused, WebSocket, WebSocketLost, _check

OPEN, DATA, SHUT, RESET = range(4)


def frame(opcode, data=b"", fin=True):
    return Frame(Opcode(opcode), data, fin=fin).serialize(mask=False)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def received(data, cuts):
    """What a WebSocket makes of a stream that comes in these pieces; and what it answers."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        found, web = [], WebSocket(ours)
        start = 0
        for end in [*cuts, len(data)]:
            theirs.sendall(data[start:end])
            start = end
            found += web.receive()
            web.flush()
        theirs.setblocking(False)
        try:
            return found, web, theirs.recv(1 << 20)
        except BlockingIOError:
            return found, web, b""


def understood(data):
    """A client's frames as the `websockets` package reads them."""
    protocol = ServerProtocol(max_size=None, state=State.OPEN)
    protocol.receive_data(data)
    return [(event.opcode, bytes(event.data)) for event in protocol.events_received()]


messages = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([TEXT, BINARY]), st.lists(st.binary(max_size=400), min_size=1, max_size=3)),
        st.tuples(st.just(9), st.binary(max_size=125)),
        st.tuples(st.just(10), st.binary(max_size=125)),
    ),
    max_size=6,
)


@given(messages, st.data())
@settings(deadline=None)
def test_any_cut_of_any_stream_is_the_same_messages(listed, data):
    stream, expected, pings = b"", [], []
    for kind, content in listed:
        if isinstance(content, bytes):
            stream += frame(kind, content)
            pings += [content] if kind == 9 else []
            continue
        for number, piece in enumerate(content):
            stream += frame(kind if number == 0 else 0, piece, fin=number == len(content) - 1)
            if number < len(content) - 1:
                stream += frame(9, b"within")  # a control frame may come between
                pings.append(b"within")
        expected.append((kind, b"".join(content)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    found, _, answered = received(stream, [cut for cut in cuts if cut])
    assert found == expected
    assert understood(answered) == [(Opcode.PONG, ping) for ping in pings]


@given(st.sampled_from([TEXT, BINARY]), st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536, 100_000]))
def test_what_is_sent_is_what_a_server_reads(kind, size):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        web, data, came = WebSocket(ours), (b"\0a" * size)[:size], b""
        web.send(data, kind)
        while web.queued or select.select([theirs], [], [], 0)[0]:
            web.flush()
            came += theirs.recv(1 << 20)
        assert understood(came) == [(kind, data)]
        assert came[1] & 0x80, "masked"
        assert len(data) <= 1 or data not in came, "by more than zeros; a single byte may be the same by chance"


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (Frame(Opcode.BINARY, b"x").serialize(mask=True), 1002),
        (bytes([0xC2, 0]), 1002),
        (bytes([0x83, 0]), 1002),
        (frame(0, b"x"), 1002),
        (frame(2, b"x", fin=False) + frame(2, b"y"), 1002),
        (bytes([0x09, 0]), 1002),
        (bytes([0x89, 126, 1, 0]), 1002),
        (bytes([0x82, 127]) + struct.pack("!Q", MESSAGE_BYTES + 1), 1009),
        (frame(2, bytes(MESSAGE_BYTES), fin=False) + frame(0, b"x"), 1009),
    ],
    ids=["masked", "reserved bit", "unknown kind", "goes on with nothing", "within another", "ping in pieces",
         "long ping", "too large", "too large in pieces"],
)  # fmt: skip
def test_what_no_server_may_send_ends_it(pair, stream, code):
    ours, theirs = pair
    web = WebSocket(ours, stream)
    with pytest.raises(WebSocketLost):
        web.receive()
    ((kind, data),) = understood(theirs.recv(1000))
    assert kind is Opcode.CLOSE and int.from_bytes(data[:2], "big") == code


def test_a_close_is_answered_behind_what_waits(pair):
    ours, theirs = pair
    web = WebSocket(ours, frame(8, struct.pack("!H", 1001)) + frame(2, b"late"))
    web.send(b"last words")
    assert web.receive() == [] and web.closed
    web.flush()
    web.send(b"too late")
    assert web.queued == 0
    assert understood(theirs.recv(1000)) == [(Opcode.BINARY, b"last words"), (Opcode.CLOSE, struct.pack("!H", 1001))]


def test_an_end_without_a_close_is_a_loss(pair):
    ours, theirs = pair
    theirs.sendall(frame(2, b"whole")[:3])
    theirs.close()
    web = WebSocket(ours)
    assert web.receive() == []
    with pytest.raises(WebSocketLost):
        web.receive()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 404 Not Found",
        b"nonsense",
        b"",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: xx",
    ],
)
def test_an_answer_that_is_none_is_a_refusal(head):
    with pytest.raises(HandshakeRefused):
        _check(head, b"key", "v1")


# Back-pressure: both ends of a session in this very process, so that it is known when nothing moves any more.


class NoWake:
    def __init__(self):
        self.fd, self.write_fd = os.pipe()
        os.set_blocking(self.fd, False)

    def drain(self):
        os.read(self.fd, 512)


@pytest.fixture
def begun(pair):
    """A session over a socket pair whose service the test makes; and its turns until nothing moves."""
    ours, theirs = pair
    wake = NoWake()
    web = WebSocket(ours, frame(TEXT, b"{}"))
    made = []

    def begin(service):
        session = WorkerSession(web, wake, lambda _request: service(web.send), [])
        made.append(session)

        def settle():
            still = 0
            while still < 8:  # a moment for the kernel and the command between two looks, on a busy machine too
                before = progress()
                session.turn(0.05)
                still = still + 1 if progress() == before else 0

        def progress():
            service = session._service
            waiting = service and (
                len(service._waiting)
                if isinstance(service, Exec)
                else [len(c.waiting) for c in service._by_fd.values()]
            )
            return web.queued, waiting, select.select([theirs], [], [], 0)[0]

        return session, web, settle

    yield begin
    for session in made:
        if session._service is not None:
            session._service.leave(0.0)
        if isinstance(session._service, Exec):
            os.killpg(session._service._pid, 9)
            os.waitpid(session._service._pid, 0)
    os.close(wake.fd)
    os.close(wake.write_fd)


def command(script):
    return Command([sys.executable, "-c", script], {"PATH": os.environ["PATH"]}, "/")


def test_a_caller_that_does_not_read_stops_the_command_not_the_memory(begun, pair):
    script = "import os\nwhile True: os.write(1, bytes(65536))"
    _, web, settle = begun(lambda send: Exec(command(script), {}, send))
    settle()
    assert sessions.QUEUED_BYTES <= web.queued < sessions.QUEUED_BYTES + 3 * 65_600


def fill(theirs, settle, piece):
    """Send until nothing is taken any more. Returns: the bytes sent."""
    theirs.setblocking(False)
    sent, stream, refused = 0, piece, 0
    while refused < 2 and sent < 64 << 20:
        try:
            taken = theirs.send(stream)
        except BlockingIOError:
            refused += 1
            settle()
            continue
        refused, sent = 0, sent + taken
        stream = stream[taken:] or piece
    return sent


def test_a_command_that_does_not_read_stops_the_caller_not_the_session(begun, pair):
    session, _, settle = begun(lambda send: Exec(command("import time; time.sleep(60)"), {}, send))
    settle()
    sent = fill(pair[1], settle, frame(BINARY, b"\0" + bytes(65_535)))
    assert exec_session.STDIN_BYTES <= len(session._service._waiting) <= exec_session.STDIN_BYTES + 2 * 65_536
    assert sent < 16 << 20


def test_a_server_that_does_not_read_stops_the_caller_too(begun, pair):
    with socket.create_server(("127.0.0.1", 0)) as server:
        session, _, settle = begun(lambda send: Forward(server.getsockname()[1], send))
        pair[1].sendall(frame(BINARY, bytes([OPEN, 0, 0, 0, 1])))
        settle()
        connection, _ = server.accept()
        sent = fill(pair[1], settle, frame(BINARY, bytes([DATA, 0, 0, 0, 1]) + bytes(65_000)))
        (one,) = session._service._by_fd.values()
        assert session._service.full and len(one.waiting) <= forward.WAITING_BYTES + 2 * 65_536
        assert sent < 48 << 20
        connection.close()
