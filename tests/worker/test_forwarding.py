"""Ports of real workers, reached by a session: many connections in one, each with its own end."""

import os
import socket
import threading

import pytest

OPEN, DATA, SHUT, RESET = range(4)


@pytest.fixture
def listener():
    """A server that answers what it was sent once the sender is done."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                data = file.read()
                connection.sendall(b"%d " % len(data) + data[::-1])

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.fixture
def forwarded(entered):
    """A server on the worker's loopback that the test accepts for, and a session that forwards to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        entered.start()
        peer = entered.call()
        assert peer.begin(kind="forward", port=server.getsockname()[1])["ready"]
        yield server, peer
        entered.go()


def frame(kind, number, data=b""):
    return bytes([kind]) + number.to_bytes(4, "big") + data


def answers(peer, count):
    """What came for each of `count` connections, until each was ended or reset: number -> (last kind, data)."""
    found, ended = {}, {}
    while len(ended) < count:
        _, data = peer.next()
        kind, number = data[0], int.from_bytes(data[1:5], "big")
        found[number] = found.get(number, b"") + data[5:]
        if kind in (SHUT, RESET):
            ended[number] = kind
    return {number: (ended[number], found[number]) for number in ended}


def test_connections_share_a_session_each_with_its_own_end(entered, listener):
    entered.start()
    peer = entered.call()
    assert peer.begin(kind="forward", port=listener) == {"ready": True}
    data = {7: os.urandom(100), 1 << 31: b"", 3: os.urandom(1 << 20) * 3}
    for number in data:
        peer.binary(frame(OPEN, number))
    for start in range(0, 3 << 20, 60_000):
        for number, sent in data.items():
            if sent[start : start + 60_000]:
                peer.binary(frame(DATA, number, sent[start : start + 60_000]))
    for number in data:
        peer.binary(frame(SHUT, number))
    found = answers(peer, len(data))
    assert found == {number: (SHUT, b"%d " % len(sent) + sent[::-1]) for number, sent in data.items()}
    peer.close()
    assert entered.go().exit_code == 0


def test_a_port_that_is_not_served_is_a_reset(entered):
    entered.start()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        peer = entered.call()
        assert peer.begin(kind="forward", port=bound.getsockname()[1])["ready"]
        peer.binary(frame(OPEN, 5))
        peer.binary(frame(DATA, 5, b"x"))
        ((kind, why),) = answers(peer, 1).values()
    assert kind == RESET and b"can't be reached: Connection refused" in why
    entered.go()


def test_a_port_of_the_newer_loopback_is_reached(entered):
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    entered.start()
    peer = entered.call()
    assert peer.begin(kind="forward", port=server.getsockname()[1])["ready"]
    peer.binary(frame(OPEN, 5))
    connection, _ = server.accept()
    connection.sendall(b"hello")
    connection.close()
    assert answers(peer, 1) == {5: (SHUT, b"hello")}
    server.close()
    entered.go()


def test_resets_go_both_ways(forwarded):
    server, peer = forwarded
    peer.binary(frame(OPEN, 1))
    connection, _ = server.accept()
    peer.binary(frame(DATA, 1, b"x"))
    assert connection.recv(10) == b"x"
    peer.binary(frame(RESET, 1))
    with pytest.raises(ConnectionResetError):
        connection.recv(10)
    connection.close()
    peer.binary(frame(OPEN, 2))
    connection, _ = server.accept()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    assert answers(peer, 1)[2][0] == RESET


def test_the_workers_end_resets_what_is_forwarded(entered, forwarded):
    server, peer = forwarded
    peer.binary(frame(OPEN, 1))
    connection, _ = server.accept()
    assert entered.go().exit_code == 0
    assert answers(peer, 1) == {1: (RESET, b"the worker has ended")}
    connection.close()
