"""Clients that do not do what clients do: the others are served all the same."""

import contextlib
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from rose_cli.local.broker import EmbeddedBroker, find_redis_server
from rose_cli.local.services import GatewayProcess
from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.gateway import Deployment, gateway_metrics, running_gateway
from tests.support.time_limit import TimeLimit

HALF_HEADERS = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-"
HALF_BODY = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b'content-length: 1000\r\n\r\n{"model": "null", "mess'
)
MANY = 300
#: Those that the gateway has room for, by default.
THOUSANDS = 5_000
#: A connection costs about 10 KiB.
MAX_KIB_EACH = 40


@pytest.fixture(scope="module")
def gateway(_brokers: Callable[[bool], EmbeddedBroker]) -> Iterator[GatewayProcess]:
    """Patient with nobody, and with few."""
    with running_gateway(
        _brokers(find_redis_server() is None).url,
        f"impatient-{os.getpid()}",
        max_connections=MANY // 2,
        header_timeout_s=1,
        body_timeout_s=1,
        max_body_bytes=100_000,
        max_nesting=20,
    ) as gateway:
        yield gateway


@pytest.fixture
def patient(broker: EmbeddedBroker, queue: str) -> Iterator[GatewayProcess]:
    """It would wait for minutes, and has room for few."""
    slow = {"header_timeout_s": 300, "body_timeout_s": 300, "max_connections": MANY // 2}
    with running_gateway(broker.url, queue, **slow) as gateway:
        yield gateway


@pytest.fixture
def hasty(broker: EmbeddedBroker, queue: str) -> Iterator[GatewayProcess]:
    """As the first, on a queue of its own."""
    quick = {"header_timeout_s": 1, "body_timeout_s": 1, "write_timeout_s": 300}
    with running_gateway(broker.url, queue, **quick) as gateway:
        yield gateway


@pytest.fixture
def brim(broker: EmbeddedBroker, queue: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    """It holds little for clients that read slowly."""
    slow = {"max_unread_bytes": 1_000_000, "write_timeout_s": 300, "storage": str(tmp_path)}
    with running_gateway(broker.url, queue, **slow) as gateway:
        yield gateway


def connect(gateway: GatewayProcess, sends: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", gateway.http_port), timeout=90)
    client.sendall(sends)
    return client


def answer_of(client: socket.socket) -> tuple[int, dict[str, object]]:
    """Status and body; (0, {}) for a connection that was closed without an answer."""
    received = b""
    try:
        while piece := client.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    if not received:
        return 0, {}
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@contextmanager
def slow_clients(gateway: GatewayProcess, count: int) -> Iterator[list[socket.socket]]:
    """In turn: silent, in mid-headers, in mid-body."""
    with ExitStack() as stack:
        sends = (b"", HALF_HEADERS, HALF_BODY)
        yield [stack.enter_context(connect(gateway, sends[i % 3])) for i in range(count)]


def test_slow_connections_beyond_all_room_stop_nobody(patient: GatewayProcess) -> None:
    with slow_clients(patient, MANY):
        for _ in range(3):  # each on a new connection
            refused = httpx.post(patient.url + "/nothing", json={}, timeout=90)
            assert refused.status_code == 404
        metrics = gateway_metrics(patient)
        assert metrics["rose_gateway_limits_hit_total"] >= MANY // 2
        assert metrics["rose_gateway_open_connections"] <= MANY // 2


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may open `THOUSANDS` of sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < THOUSANDS + 1_000:
        pytest.skip(f"a process may open {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory_kib(gateway: GatewayProcess) -> int:
    pages = Path(f"/proc/{gateway.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize() // 1024


@pytest.mark.usefixtures("many_files")
def test_thousands_of_slow_connections_stop_nobody_and_cost_little(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given: room for all of them, and an answer to somebody else that goes on all the time
    deployment = start_deployment(
        worker={"min_step_s": 0.02},
        header_timeout_s=300,
        body_timeout_s=300,
        write_timeout_s=300,
    )
    ask = {"model": "null", "prompt": "hi", "max_tokens": 20_000}
    before = memory_kib(deployment.gateway)
    with (
        deployment.openai(timeout=90) as client,
        client.completions.create(**ask, stream=True) as stream,
    ):
        events = iter(stream)
        next(events)
        # when
        with slow_clients(deployment.gateway, THOUSANDS) as slow:
            wait_until(
                lambda: (
                    gateway_metrics(deployment.gateway)["rose_gateway_open_connections"] > THOUSANDS
                )
            )
            for _ in range(5):
                for connection in slow[1::3]:  # those in mid-headers
                    connection.sendall(b"x")
                assert next(events).choices[0].text
                client.with_options(max_retries=0).completions.create(**{**ask, "max_tokens": 2})
            # then
            metrics = gateway_metrics(deployment.gateway)
            assert metrics["rose_gateway_open_connections"] > THOUSANDS
            assert metrics["rose_gateway_limits_hit_total"] == 0
            assert memory_kib(deployment.gateway) - before < THOUSANDS * MAX_KIB_EACH


def test_who_is_slow_is_told_and_hung_up_on(gateway: GatewayProcess) -> None:
    with slow_clients(gateway, 3) as (silent, in_headers, in_body):
        assert answer_of(silent) == (0, {})
        for client, part in ((in_headers, "headers"), (in_body, "body")):
            status, body = answer_of(client)
            assert status == 408
            assert body["error"]["message"] == f"the request's {part} took too long"


def test_a_trickle_of_headers_is_slow_as_well(gateway: GatewayProcess) -> None:
    with connect(gateway, b"GET / HTTP/1.1\r\n") as client:
        client.settimeout(0.05)
        received = b""
        limit = TimeLimit(90)
        while not received and not limit.passed:
            with contextlib.suppress(OSError):  # it may have hung up
                client.sendall(b"x: y\r\n")
            with contextlib.suppress(TimeoutError):
                received = client.recv(65536)
        assert received.startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_is_used_again_is_kept(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=90) as client:
        assert client.get("/healthz").status_code == 200
        # this client, and who reads the metrics
        wait_until(lambda: gateway_metrics(gateway)["rose_gateway_open_connections"] == 2)
        time.sleep(1.5)  # longer than headers may take; nothing decides on it
        assert client.get("/healthz").status_code == 200


def largest_receive_buffer() -> int:
    """Bytes to which the system lets that of a connection grow."""
    return int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2])


@pytest.mark.parametrize(
    "request_head",
    [
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
    ids=["announced", "chunked"],
)
def test_a_body_of_a_gigabyte_is_refused_early(
    gateway: GatewayProcess, request_head: bytes
) -> None:
    # given
    piece = b"x" * 65536
    chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
    sent = 0
    before = gateway_metrics(gateway)["rose_gateway_received_bytes_total"]
    with connect(gateway, request_head) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        # when
        try:
            while sent < 1_000_000_000:
                client.sendall(chunk)
                sent += len(piece)
        except OSError:  # it was hung up on
            pass
        # then
        # The gateway takes 8 MiB more. What then lies in the system's buffers counts as sent.
        assert sent < 10_000_000 + largest_receive_buffer()
        status, body = answer_of(client)
        assert (status, body["error"]["code"]) == (413, "body_too_large")
    metrics = gateway_metrics(gateway)
    assert metrics["rose_gateway_received_bytes_total"] - before < 1_000_000


def test_a_client_that_is_refused_may_still_send_megabytes(gateway: GatewayProcess) -> None:
    # given: many clients give up at a connection that breaks while they write
    body = b"x" * 7 * 1024 * 1024
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"

    def answered_at_the_end() -> bool:
        with connect(gateway, head % len(body)) as client:
            try:
                client.sendall(body)
            except OSError:
                return False
            return answer_of(client)[0] == 413

    # then: where the machine does not stall for as long as the gateway waits
    wait_until(answered_at_the_end)


def test_what_is_too_deep_is_refused_before_it_is_parsed(gateway: GatewayProcess) -> None:
    deep = '{"model": "m", "input": ' + "[" * 21 + '"]]]"' + "]" * 21 + "}"
    answer = httpx.post(f"{gateway.url}/responses", content=deep, timeout=90)
    assert answer.status_code == 400
    assert "nested deeper than 20" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("sends", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 100_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
        (b"HELLO\r\n\r\n", 400),
        (b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost:1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 400 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /healthz?" + b"y" * 60_000 + b" HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 9_000, 431),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: http://127.0.0.1/@evil\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1@evil\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost:\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: [::1\r\n\r\n", 400),
        (b"GET http://evil/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    ],
    ids=[
        *(
            "one long header",
            "many headers",
            "TLS",
            "no HTTP",
            "a tunnel",
            "whole, with many headers",
        ),
        *("whole, with a long header", "a long target", "no host", "two hosts", "a URL for a host"),
        *("a user in the host", "an empty host", "half an address", "another's target"),
    ],
)
def test_what_is_no_request_is_refused(gateway: GatewayProcess, sends: bytes, status: int) -> None:
    with connect(gateway) as client:
        with contextlib.suppress(OSError):  # answered before all was sent
            client.sendall(sends)
        assert answer_of(client)[0] == status
    assert "ERROR" not in gateway.log


def test_the_offer_of_another_protocol_is_not_taken(gateway: GatewayProcess) -> None:
    # given: requests as Java's HTTP client begins them, and then one without the offer
    offer = b"host: localhost\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    offer += b"http2-settings: AAEAAEAAAAIAAAAB\r\n"
    post = b"POST /v1/chat/completions HTTP/1.1\r\n" + offer
    pieces = [
        b"GET /healthz HTTP/1.1\r\n" + offer + b"\r\n",
        post + b"content-length: 2\r\n\r\n",
        b"{}",
        post + b"transfer-encoding: chunked\r\n\r\n2\r\n{",
        b"}\r\n0\r\n\r\n" + post + b"content-length: 2\r\n\r\n{}",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ]
    # when
    with connect(gateway) as client:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0.05)  # so that they arrive one by one; nothing decides on it
        received = b"".join(iter(lambda: client.recv(65536), b""))
    # then
    statuses = [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", received)]
    assert statuses == [200, 400, 400, 400, 200]
    assert received.count(b"model: is required and missing") == 3


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
GET = bytes([0, 0, 3, 1, 5, 0, 0, 0, 1, 0x82, 0x84, 0x86])  # HEADERS of stream 1


def test_http_2_is_told_that_http_1_1_is_required(gateway: GatewayProcess) -> None:
    # given
    rst_stream = bytes([0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0x0D])
    with connect(gateway) as client:
        # when
        client.sendall(PREFACE)
        received = client.recv(9)
        client.sendall(GET)
        received += client.recv(65536)
    # then
    assert received == bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) + rst_stream


def _curl_knows_http_2() -> bool:
    curl = shutil.which("curl")
    return bool(curl) and "HTTP2" in subprocess.check_output([curl, "--version"], text=True)


@pytest.mark.skipif(not _curl_knows_http_2(), reason="needs curl with HTTP/2")
def test_curl_asks_again_without_http_2(gateway: GatewayProcess) -> None:
    curl = ["curl", "--silent", "--max-time", "90", "--http2-prior-knowledge"]

    answer = subprocess.run(
        [*curl, f"{gateway.url}/responses", "--data", "{}"], capture_output=True, check=True
    )

    assert b"model: is required and missing" in answer.stdout


def test_a_client_that_leaves_in_mid_request_leaves_nothing_behind(
    gateway: GatewayProcess,
) -> None:
    for sends in (HALF_HEADERS, HALF_BODY):
        connect(gateway, sends).close()
    # one is left: who reads the metrics
    wait_until(lambda: gateway_metrics(gateway)["rose_gateway_open_connections"] == 1)
    assert "ERROR" not in gateway.log


CHUNKED = b"host: localhost\r\ntransfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    "sends", [b"a:\r\n" * 16_384, b"a: %s\r\n" % (b"b" * 60_000)], ids=["many", "long"]
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/completions"])
def test_trailers_are_counted_and_kept_nowhere(
    gateway: GatewayProcess, path: str, sends: bytes
) -> None:
    # given
    before = memory_kib(gateway)
    with connect(gateway, f"POST {path} HTTP/1.1\r\n".encode() + CHUNKED + b"\r\n0\r\n") as client:
        # when
        sent = 0
        try:
            while sent < 64_000_000:
                client.sendall(sends)
                sent += len(sends)
        except OSError:  # it was hung up on
            pass
    # then
    assert sent < 64_000_000
    assert memory_kib(gateway) - before < 20_000


@pytest.mark.parametrize("chunk", [b"2;" + b"a=b;" * 16_384, b"0" * 65_536 + b"1\r\nx\r\n"])
def test_what_stands_around_chunks_is_counted(gateway: GatewayProcess, chunk: bytes) -> None:
    with connect(gateway, b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + b"\r\n") as client:
        sent = 0
        try:
            while sent < 64_000_000:
                client.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass
    assert sent < 64_000_000


def test_a_trailer_is_no_header(gateway: GatewayProcess) -> None:
    request = b"POST /v1/completions HTTP/1.1\r\nconnection: close\r\n" + CHUNKED + b"\r\n"
    request += b"2\r\n{}\r\n0\r\nx-request-id: from-a-trailer\r\n\r\n"
    with connect(gateway, request) as client:
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 400")
    assert b"from-a-trailer" not in received


def test_chunks_of_a_byte_are_a_body(gateway: GatewayProcess) -> None:
    body = b'{"model": "null", "prompt": 7}' + b" " * 20_000
    request = b"POST /v1/completions HTTP/1.1\r\nconnection: close\r\n" + CHUNKED + b"\r\n"
    request += b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with connect(gateway, request) as client:
        status, answer = answer_of(client)
    assert status == 400
    assert answer["error"]["param"] == "prompt"


def test_a_body_of_a_path_that_asks_for_no_caller_is_not_read(gateway: GatewayProcess) -> None:
    before = gateway_metrics(gateway)["rose_gateway_received_bytes_total"]
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50000\r\n\r\n"
    with connect(gateway, head + b"[" * 50_000) as client:
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in received
    assert gateway_metrics(gateway)["rose_gateway_received_bytes_total"] == before


def test_requests_before_their_answers_are_few(gateway: GatewayProcess) -> None:
    one = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connect(gateway, one * 20) as client:
        wait = b""
        while wait.count(b"HTTP/1.1 200") < 20:
            wait += client.recv(65536)
    with connect(gateway) as client, contextlib.suppress(OSError):
        client.sendall(one * 4_000)
        while client.recv(65536):
            pass
    assert "ERROR" not in gateway.log


def test_a_stream_ends_with_its_client_though_another_request_has_come(
    patient: GatewayProcess, client: Client
) -> None:
    # given: the events of a job that nobody works on, and a request behind
    job = client.submit("Once")
    paths = (f"/v1/jobs/{job.id}/events", "/v1/models")
    sends = "".join(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n" for path in paths)
    with connect(patient, sends.encode()) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert gateway_metrics(patient)["rose_gateway_open_streams"] == 1
    # then
    wait_until(lambda: gateway_metrics(patient)["rose_gateway_open_streams"] == 0)
    assert "ERROR" not in patient.log


@pytest.mark.parametrize(
    ("refused", "is_late"),
    [
        pytest.param(b"no request\r\n\r\n", False, id="no HTTP"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", False, id="no host"),
        pytest.param(HALF_HEADERS, True, id="headers without end"),
        pytest.param(HALF_BODY, True, id="a body without end"),
    ],
)
def test_a_request_refused_behind_a_stream_leaves_it_whole(
    hasty: GatewayProcess, client: Client, refused: bytes, is_late: bool
) -> None:
    # given: a stream that waits for its job, and behind it what is refused, at once or in a second
    job = client.submit("Once")
    request = f"GET /v1/jobs/{job.id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with connect(hasty, request) as connection:
        received = connection.recv(65536)
        connection.sendall(refused)
        if is_late:
            wait_until(lambda: gateway_metrics(hasty)["rose_gateway_limits_hit_total"] >= 1)
        # when the stream comes to its end
        job.cancel()
        while piece := connection.recv(65536):
            received += piece
    # then nothing stands in it but its own chunks, and the connection is closed behind it
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1") == 1
    assert received.endswith(b"\r\n0\r\n\r\n")
    assert "ERROR" not in hasty.log


def test_those_who_read_nothing_lose_their_connections_to_those_who_read(
    brim: GatewayProcess,
) -> None:
    # given: an answer of many megabytes, and room for a few that do not read it
    content = b'{"custom_id": "a"}\n' * 400_000
    made = httpx.post(
        brim.url + "/files",
        data={"purpose": "batch"},
        files={"file": ("in.jsonl", content)},
        timeout=90,
    ).json()
    path = f"/v1/files/{made['id']}/content"
    request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with ExitStack() as stack:
        # when
        silent = [stack.enter_context(connect(brim, request)) for _ in range(12)]
        wait_until(lambda: gateway_metrics(brim)["rose_gateway_limits_hit_total"] >= 6)
        # then: one who reads gets all of it
        assert httpx.get(brim.url + path.removeprefix("/v1"), timeout=90).content == content
        # and: of the others no more are left than there is room for
        received = [all_of(client) for client in silent]
        assert sum(len(one) > len(content) for one in received) <= 5


def all_of(client: socket.socket) -> bytes:
    """What comes until the answer is whole, or the connection is closed."""
    client.settimeout(2)
    received = b""
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        while piece := client.recv(1 << 20):
            received += piece
    return received
