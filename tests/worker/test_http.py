"""The metrics server among clients that are slow, silent, many, or gone."""

import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric, UntypedMetricFamily
from prometheus_client.registry import Collector

from rose_worker import http
from rose_worker.http import HttpServer
from tests.support.bench import wait_until
from tests.support.time_limit import TimeLimit


class Slow:
    """A collector that waits for the test, then answers with more than a socket's buffers hold."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.asked.set()
        self.go.wait(120)
        yield UntypedMetricFamily("big", "x" * 20_000_000, 1)


@pytest.fixture
def slow() -> Slow:
    return Slow()


@contextmanager
def serving(collector: Collector | None = None, host: str = "127.0.0.1") -> Iterator[HttpServer]:
    registry = CollectorRegistry(auto_describe=False)
    if collector is not None:
        registry.register(collector)
    server = HttpServer(host, 0, name="w")
    server.serve(registry, healthy=lambda: None, ready=lambda: "no Redis")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server(slow: Slow) -> Iterator[HttpServer]:
    with serving(slow) as server:
        yield server
        slow.go.set()


def connected(server: HttpServer, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=90))


def healthz(server: HttpServer) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=90) as reply:
        return int(reply.status)


def closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(("host", "asked"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])])
def test_it_serves_ipv6(host: str, asked: list[str]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving(host=host) as made:
        for address in asked:
            # when
            connection = HTTPConnection(address, made.port, timeout=90)
            connection.request("GET", "/healthz")
            status = connection.getresponse().status
            connection.close()
            # then
            assert status == 200


def test_silent_clients_keep_no_probe_out_and_cost_a_bounded_number_of_threads(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # whoever waited for one of them would wait for minutes
    monkeypatch.setattr(http, "MAX_CONNECTION_S", 600)
    before = threading.active_count()
    with ExitStack() as stack:
        # given: many that say nothing
        silent = [connected(server, stack) for _ in range(10 * http.MAX_CONNECTIONS)]
        # when
        statuses = [healthz(server) for _ in range(20)]
        # then
        assert statuses == [200] * 20
        assert threading.active_count() - before <= http.MAX_CONNECTIONS
        # and: the oldest had to go
        assert closed(silent[0])


def test_a_client_that_trickles_has_its_time_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    monkeypatch.setattr(http, "MAX_CONNECTION_S", 0.5)
    with serving() as server, ExitStack() as stack:
        client = connected(server, stack)
        client.settimeout(0.1)
        gone = False
        limit = TimeLimit(90)
        # when: a byte now and then, each well within a socket's timeout
        while not gone and not limit.passed:
            try:
                client.sendall(b"G")
                gone = closed(client)
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                gone = True
        # then
        assert gone


def test_a_client_that_is_gone_leaves_no_traceback(
    server: HttpServer, slow: Slow, capfd: pytest.CaptureFixture[str]
) -> None:
    # given: one that asks, and resets the connection before the answer comes
    with ExitStack() as stack:
        client = connected(server, stack)
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert slow.asked.wait(30)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # when
    slow.go.set()
    wait_until(lambda: not any("process_request" in t.name for t in threading.enumerate()))
    # then
    assert capfd.readouterr().err == ""
    assert healthz(server) == 200


def test_what_really_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    # given
    class Broken:
        def collect(self) -> Iterator[Metric]:
            raise ValueError("no such figure")
            yield

    # when
    with serving(Broken()) as broken, ExitStack() as stack:
        client = connected(broken, stack)
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert closed(client)
    # then
    assert "no such figure" in caplog.text


def test_a_head_without_end_is_hung_up_on() -> None:
    with serving() as server, ExitStack() as stack:
        client = connected(server, stack)
        sent = 0
        try:
            client.sendall(b"GET /healthz HTTP/1.1\r\n")
            while sent < 16_000_000:
                client.sendall(b"x: " + b"y" * 50_000 + b"\r\n")
                sent += 50_000
        except OSError:  # it was hung up on
            pass
        assert sent < 16_000_000
        assert healthz(server) == 200


@pytest.mark.parametrize(
    "headers",
    [
        *({"Host": "bent.example"}, {"Origin": "https://somewhere.example"}),
        *({"Sec-Fetch-Site": "cross-site"}, {"Host": "http://127.0.0.1/@evil"}),
    ],
)
def test_it_is_not_for_web_pages(headers: dict[str, str]) -> None:
    with serving() as server:
        client = HTTPConnection("127.0.0.1", server.port, timeout=90)
        client.request("GET", "/metrics", headers=headers)
        assert client.getresponse().status == 403
        client.close()
        assert healthz(server) == 200


def test_beyond_loopback_it_is_asked_by_any_name_and_by_no_page() -> None:
    with serving(host="0.0.0.0") as server:
        for headers, status in (
            ({"Host": "worker:9400"}, 200),
            ({"Host": "worker:9400", "Origin": "https://somewhere.example"}, 403),
        ):
            client = HTTPConnection("127.0.0.1", server.port, timeout=90)
            client.request("GET", "/healthz", headers=headers)
            assert client.getresponse().status == status
            client.close()
