"""The endpoint over real sockets: text that Prometheus reads, access, and clients that behave badly."""

import gzip
import http.client
import socket
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack, closing

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families

from stoker.exporter.catalogue import COUNTER, EXPORTER, HARDWARE, JOB, JOB_LABELS, MIG, TABLES
from stoker.exporter.meters.snapshot import Books, GpuState, JobState, MigState, Share, Snapshot
from stoker.exporter.owners import Owner
from stoker.exporter.serving.families import UNITS, families
from stoker.exporter.serving.page import ALIVE_S, RenderedPage
from stoker.exporter.serving.server import MAX_HEAD_BYTES, Server
from stoker.exporter.serving.tls_and_tokens import BearerTokens, Certificate, CredentialsError
from stoker.push.client import Receiver, RemoteWriteClient
from stoker.push.link import Link
from tests.support.testbed.build import Unavailable, program

FORBIDDEN = {"job", "pod", "namespace", "instance", "container", "endpoint", "service"}


TEXT, OPENMETRICS = "", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
PARSERS = {TEXT: text_string_to_metric_families, OPENMETRICS: openmetrics_string_to_metric_families}


def page_of(snapshot):
    page = RenderedPage()
    page.show(lambda: families(snapshot))
    return page


def render(snapshot, accept=TEXT):
    return page_of(snapshot).body(accept)[1].decode()


def every_value(families, special):
    """A flat value of each family, as the meters would show it."""
    return {"|".join((family.name, *family.labels)): 0.5 for family in families if family.name not in special}


def whole_snapshot():
    """Every family there is."""
    owner = Owner("vision", 'odd "name"\\with\nlines', "uid-1", "job-1", "vision", "resnet", 2, 1)
    values = every_value(HARDWARE, {"info", "allocation_share_ratio"})
    accounts = {key: values.pop(key) for key in list(values) if key.startswith("account_")}
    mig = MigState("MIG-1", "1g.10gb", 1, every_value(MIG, {"info"}))
    gpu = GpuState(
        0, "GPU-1", {"model": "H200", "simulated": "false"}, values, (Share("GPU-1", owner, 1, "x"),), (mig,)
    )
    jobs = (JobState(0, "GPU-1", owner, every_value(JOB, ())),)
    exporter = every_value(EXPORTER, {"build_info"})
    return Snapshot(1.0, "node-a", (gpu,), Books({"GPU-1": accounts}, jobs), exporter, "1.2.3")


@pytest.mark.parametrize("accept", [TEXT, OPENMETRICS])
def test_every_family_of_the_catalogue_is_rendered_as_prometheus_reads_it(accept):
    found = {family.name: family for family in PARSERS[accept](render(whole_snapshot(), accept))}
    wanted = {prefix + family.name: (family, labels) for prefix, (table, labels) in TABLES.items() for family in table}
    assert set(found) == {name.removesuffix("_total") for name in wanted}
    for name, (family, labels) in wanted.items():
        page_family = found[name.removesuffix("_total")]
        assert page_family.type == family.type and page_family.documentation == family.help
        unit = page_family.name.rpartition("_")[2]
        assert page_family.unit == (unit if accept and unit in UNITS else "")
        for sample in page_family.samples:
            assert sample.name == name and (name.endswith("_total") == (family.type == COUNTER))
            assert set(sample.labels) <= {*labels, *family.labels}
            if name != "stoker_gpu_info":
                assert set(sample.labels) == {*labels, *family.labels}
            assert not FORBIDDEN & set(sample.labels)


def test_what_promtool_says_of_it():
    try:
        promtool = program("promtool")
    except Unavailable as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=render(whole_snapshot()),
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("accept", [TEXT, OPENMETRICS])
def test_odd_labels_come_through(accept):
    node = 'a"b\\c\nd{},=é'
    snapshot = Snapshot(1.0, node, (GpuState(0, "GPU-1", values={"up": 1.0, "power_watts": 150754820096.25}),))
    watts, up = sorted(PARSERS[accept](render(snapshot, accept)), key=lambda family: family.name)
    assert up.samples[0].labels == {"node": node, "gpu": "0", "uuid": "GPU-1"}
    assert watts.samples[0].value == 150754820096.25


def test_a_poll_is_not_delayed_by_a_render():
    page = RenderedPage()
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        begun.set()
        go_on.wait(20)
        return families(Snapshot(1.0, "old", exporter={"polls_total": 1.0}))

    page.show(slow)
    bodies = []
    scrape = threading.Thread(target=lambda: bodies.append(page.body()[1]))
    scrape.start()
    assert begun.wait(20)
    page.show(lambda: families(Snapshot(2.0, "new", exporter={"polls_total": 2.0})))
    assert b'node="new"' in page.body()[1]
    go_on.set()
    scrape.join()
    assert b'node="old"' in bodies[0]


@pytest.fixture
def page():
    values = {"up": 1.0, "power_watts": 312.5}
    return page_of(
        Snapshot(1.0, "node-a", tuple(GpuState(index, f"GPU-{index}", values=values) for index in range(99)))
    )


@pytest.fixture
def serve(page):
    servers = []

    def start(**options):
        server = Server(("127.0.0.1", 0), page, **options)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(port, path="/metrics", method="GET", tls=None, **headers):
    make = http.client.HTTPConnection if tls is None else http.client.HTTPSConnection
    more = {} if tls is None else {"context": tls}
    connection = make("127.0.0.1", port, timeout=20, **more)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_paths_and_methods(serve, page):
    port = serve()
    status, headers, body = ask(port)
    assert (status, body) == (200, page.body()[1])
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8" and "Server" in headers
    assert ask(port, "/metrics?x=1")[0] == 200 and b"/metrics" in ask(port, "/")[2]
    status, headers, body = ask(port, method="HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(len(page.body()[1])), b"")
    assert ask(port, "/nothing")[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        status, headers, _ = ask(port, method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert ask(port, **{"Content-Length": "5"})[0] == 400


def test_gzip_when_asked(serve, page):
    port = serve()
    _, headers, body = ask(port, **{"Accept-Encoding": "gzip, deflate"})
    assert headers["Content-Encoding"] == "gzip" and gzip.decompress(body) == page.body()[1] and len(body) < 2000
    page.show(lambda: families(Snapshot(2.0, "node-b", exporter={"polls_total": 2.0})))
    assert b"node-b" in gzip.decompress(ask(port, **{"Accept-Encoding": "gzip"})[2])


def test_openmetrics_when_asked(serve):
    port = serve()
    for encoding in ("identity", "gzip"):
        _, headers, body = ask(port, Accept=OPENMETRICS, **{"Accept-Encoding": encoding})
        text = (gzip.decompress(body) if encoding == "gzip" else body).decode()
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
        assert "# UNIT stoker_gpu_power_watts watts\n" in text and text.endswith("# EOF\n")
    assert ask(port, Accept="text/plain;version=0.0.4")[1]["Content-Type"] == ask(port)[1]["Content-Type"]


def test_one_connection_for_many_scrapes(serve, page):
    connection = http.client.HTTPConnection("127.0.0.1", serve(), timeout=20)
    connection.request("GET", "/metrics")
    assert connection.getresponse().read() == page.body()[1]
    first = connection.sock
    connection.request("GET", "/metrics")
    assert connection.getresponse().read() == page.body()[1] and connection.sock is first
    connection.close()


def test_probes(serve):
    now = [0.0]
    page = RenderedPage(lambda: now[0])
    server = Server(("127.0.0.1", 0), page)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    port = server.server_address[1]
    try:
        assert ask(port, "/healthz")[0] == 200 and ask(port, "/readyz")[0] == 503
        page.ready = True
        assert ask(port, "/readyz")[0] == 200
        now[0] = ALIVE_S + 1
        assert ask(port, "/healthz")[0] == 503
        page.show(tuple)
        assert ask(port, "/healthz")[0] == 200
    finally:
        server.shutdown()
        server.server_close()


def test_tokens(serve, tmp_path, caplog):
    file = tmp_path / "tokens"
    file.write_text("old\nnew\n")
    port = serve(tokens=BearerTokens(file))
    assert ask(port)[0] == 401 and ask(port)[1]["WWW-Authenticate"] == "Bearer"
    for wrong in ("Bearer", "Bearer ", "Bearer x", "Basic old", "old", "Bearer old\xff"):
        assert ask(port, Authorization=wrong)[0] == 401
    assert ask(port, Authorization="Bearer old")[0] == ask(port, Authorization="bearer new")[0] == 200
    assert ask(port, "/healthz")[0] == 200 and ask(port, "/")[0] == 401
    replace(file, "newer\n")
    assert ask(port, Authorization="Bearer newer")[0] == 200 and ask(port, Authorization="Bearer old")[0] == 401
    replace(file, "\n")
    assert ask(port, Authorization="Bearer newer")[0] == 200 and "is empty" in caplog.text
    file.unlink()
    assert ask(port, Authorization="Bearer newer")[0] == 200


def test_token_files_that_can_not_be_used(tmp_path):
    (tmp_path / "empty").write_text(" \n")
    for name in ("none", "empty"):
        with pytest.raises(CredentialsError, match=name):
            BearerTokens(tmp_path / name)


def replace(file, text):
    """As Kubernetes replaces a Secret's files."""
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


def certificate(folder, name, *signed_by):
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*command, "-days", "2", *subject, *files, *signed_by], check=True, capture_output=True, timeout=60)
    return folder / f"{name}.crt", folder / f"{name}.key"


def test_both_clients_trust_an_authority_that_says_nothing_of_its_keys_use(serve, tmp_path):
    """As clusters have them; Python 3.13's default profile refuses them."""
    authority, its_key = certificate(tmp_path, "authority")
    cert, key = certificate(tmp_path, "own", "-CA", authority, "-CAkey", its_key)
    address = f"https://127.0.0.1:{serve(certificate=Certificate(cert, key))}"
    assert RemoteWriteClient(Receiver(f"{address}/write", ca_file=authority)).send(b"").code == "405"
    assert Link(address, ca_file=authority).post("/v1", b"{}").status == 405


def test_tls_and_a_certificate_that_changes(serve, tmp_path, page):
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    cert, key = tmp_path / "cert", tmp_path / "key"
    replace(cert, first[0].read_text())
    replace(key, first[1].read_text())
    port = serve(certificate=Certificate(cert, key))
    trusting_first = ssl.create_default_context(cafile=first[0])
    trusting_second = ssl.create_default_context(cafile=second[0])
    assert ask(port, tls=trusting_first)[2] == page.body()[1]
    with socket.create_connection(("127.0.0.1", port)) as silent:  # a handshake that never comes holds up no other
        assert ask(port, tls=trusting_first)[0] == 200
        assert b"HTTP" not in closed_after(silent, b"GET / HTTP/1.0\r\n\r\n")
    replace(cert, second[0].read_text())
    assert ask(port, tls=trusting_first)[0] == 200  # it does not fit the key yet: the one before goes on
    replace(key, second[1].read_text())
    assert ask(port, tls=trusting_second)[0] == 200
    with pytest.raises(ssl.SSLError):
        ask(port, tls=trusting_first)
    with pytest.raises(CredentialsError, match="cert"):
        Certificate(cert, first[1])


def closed_after(sock, data=b""):
    """What comes until the server closes."""
    sock.settimeout(20)
    got = b""
    try:
        sock.sendall(data)
        while piece := sock.recv(65536):
            got += piece
    except ConnectionError:
        pass
    return got


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /" + b"a" * (2 * MAX_HEAD_BYTES), id="a long line"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: 1\r\n" % n for n in range(5000)), id="many headers"),
        pytest.param(b"\r\n", id="nothing"),
        pytest.param(b"\x16\x03\x01\x02\x00" * 50 + b"\n", id="TLS to a plain port"),
        pytest.param(b"GET /metrics", id="half a request"),
    ],
)
def test_heads_that_are_none(serve, head):
    port = serve(request_s=0.3)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        assert b"stoker_gpu_up" not in closed_after(sock, head)
    assert ask(port)[0] == 200


def test_a_drip_of_bytes_has_a_deadline(serve):
    port = serve(request_s=0.3)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(0.05)
        until = time.monotonic() + 30
        closed = False
        while not closed and time.monotonic() < until:
            try:
                sock.sendall(b"G")
                closed = sock.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
    assert closed


class Kept(http.client.HTTPConnection):
    """A connection that has had an answer and stays open."""

    def __init__(self, port, source="127.0.0.1"):
        super().__init__("127.0.0.1", port, timeout=20, source_address=(source, 0))
        assert self.scrape() == 200

    def scrape(self):
        self.request("GET", "/metrics")
        answer = self.getresponse()
        answer.read()
        return answer.status

    def is_cut(self):
        """Waits for it."""
        return self.sock.recv(1) == b""


def test_at_the_bound_the_longest_idle_connection_goes(serve):
    port = serve(max_connections=3)
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(closing(Kept(port, f"127.0.0.{n}"))) for n in (2, 3, 4))
        assert first.scrape() == 200
        stack.enter_context(closing(Kept(port, "127.0.0.5")))
        assert second.is_cut(), "its last request is the oldest"
        assert first.scrape() == third.scrape() == 200


def test_an_address_at_its_bound_displaces_its_own(serve):
    port = serve(max_connections=4, max_of_one_address=2)
    with ExitStack() as stack:
        other, first, second, third = (stack.enter_context(closing(Kept(port, f"127.0.0.{n}"))) for n in (3, 2, 2, 2))
        assert first.is_cut()
        for n in (4, 5):
            stack.enter_context(closing(Kept(port, f"127.0.0.{n}")))
        assert second.is_cut(), "one of those that hold most, though `other` has been idle for longer"
        assert other.scrape() == third.scrape() == 200


def test_a_handshake_that_never_comes_makes_room_too(serve, tmp_path):
    cert, key = certificate(tmp_path, "own")
    port = serve(certificate=Certificate(cert, key), max_connections=1)
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert ask(port, tls=ssl.create_default_context(cafile=cert))[0] == 200
        assert closed_after(silent) == b""


def test_no_connection_is_kept_for_a_probe_and_none_for_long_without_a_token(serve, monkeypatch):
    monkeypatch.setattr("stoker.exporter.serving.server.OPEN_IDLE_S", 0.1)
    port = serve()
    assert ask(port, "/healthz")[1]["Connection"] == ask(port, "/readyz")[1]["Connection"] == "close"
    with closing(Kept(port)) as idle:
        assert idle.is_cut()


def test_job_labels_of_a_node_are_not_prometheus_own():
    assert not FORBIDDEN & {*JOB_LABELS, *(name for _, labels in TABLES.values() for name in labels)}
    assert not FORBIDDEN & {name for families, _ in TABLES.values() for family in families for name in family.labels}
