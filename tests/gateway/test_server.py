"""How the gateway begins and ends."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import httpx2 as httpx
import pytest

from rose.errors import ConfigurationError
from rose.web_access import is_loopback
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess
from rose_gateway.access.authentication import Caller, identify
from rose_gateway.access.keys import Keys, open_keys
from rose_gateway.errors import ApiError
from rose_gateway.server import check_exposure, connections_of, listen
from rose_gateway.settings import GatewaySettings, KeyLimits
from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.gateway import Deployment, gateway_metrics

LONG = {"model": "null", "prompt": "ab", "max_tokens": 100_000, "stream": True}
SLOW = {"min_step_s": 0.02}


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org")),
    ],
)
def test_what_is_loopback(host: str, only_here: bool) -> None:
    assert is_loopback(host) == only_here


async def test_beyond_loopback_it_asks_for_a_key_or_a_word(own_broker: EmbeddedBroker) -> None:
    # given
    settings = GatewaySettings(redis_url=own_broker.url, host="0.0.0.0")
    # then
    with pytest.raises(ConfigurationError, match="rose keys create"):
        await check_exposure(settings)
    await check_exposure(settings.model_copy(update={"open": True}))
    await check_exposure(settings.model_copy(update={"host": "::1"}))


async def test_a_gateway_beyond_loopback_stays_shut_whatever_becomes_of_the_keys(
    own_broker: EmbeddedBroker,
) -> None:
    # given
    settings = GatewaySettings(redis_url=own_broker.url, host="0.0.0.0")
    keys, client = open_keys(settings)
    key, secret = await keys.create("only", KeyLimits())
    await check_exposure(settings)
    # when: it is revoked; then Redis loses all
    await keys.revoke(key.id)
    for _ in range(2):
        # then
        for shown in (None, secret):
            with pytest.raises(ApiError, match="API key") as refused:
                await identify(shown, Keys(client), settings)  # what it reads is fresh
            assert refused.value.status == 401
        await client.execute("FLUSHALL")
    on_loopback = settings.model_copy(update={"host": "127.0.0.1"})
    assert await identify(None, Keys(client), on_loopback) == Caller()
    await client.aclose()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}.*ROSE_GATEWAY_PORT"):
            listen("127.0.0.1", port)


def test_a_low_limit_of_open_files_is_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match=r"64 files open here.*LimitNOFILE"):
        connections_of(64, wanted=100)
    assert connections_of(200, wanted=100) == 72
    assert "no more than 72 connections" in caplog.text
    caplog.clear()
    assert connections_of(1024, wanted=100) == 100
    assert not caplog.text


def test_a_redis_that_cannot_be_used_is_told_at_the_start(
    own_broker: EmbeddedBroker, queue: str
) -> None:
    # given
    wrong = own_broker.url.replace("redis://", "redis://:wrong@")
    # when
    with GatewayProcess("gateway", wrong, queue=queue) as gateway:
        # then
        wait_until(lambda: "Redis cannot be used" in gateway.log)
        assert "WARNING" in gateway.log
        assert "wrong@" not in gateway.log


def test_sigterm_lets_open_answers_end(start_deployment: Callable[..., Deployment]) -> None:
    # given
    deployment = start_deployment(worker=SLOW, grace_s=60)
    body = {**LONG, "max_tokens": 40}
    with httpx.stream("POST", f"{deployment.url}/completions", json=body, timeout=90) as answer:
        lines = answer.iter_lines()
        next(lines)
        # when
        deployment.gateway.signal(signal.SIGTERM)
        # then
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert deployment.gateway.terminate() == 0
    assert "ERROR" not in deployment.gateway.log


def test_after_the_grace_period_streams_are_broken_off_and_their_jobs_go_on(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given
    deployment = start_deployment(worker=SLOW, grace_s=0.2)
    with httpx.stream("POST", f"{deployment.url}/completions", json=LONG, timeout=90) as answer:
        job_id = answer.headers["x-rose-job-id"]
        lines = answer.iter_lines()
        next(lines)
        # when
        assert deployment.gateway.terminate() == 0
        # then: the client can tell that this is not the end
        with pytest.raises(httpx.TransportError):
            list(lines)
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        job = client.job(job_id)
        tokens = job.status().tokens
        wait_until(lambda: job.status().tokens > tokens)
        assert not job.status().cancel_requested
        assert job.cancel()


def test_a_second_signal_ends_it_at_once(start_deployment: Callable[..., Deployment]) -> None:
    deployment = start_deployment(worker=SLOW, grace_s=3600)
    with httpx.stream("POST", f"{deployment.url}/completions", json=LONG, timeout=90) as answer:
        lines = answer.iter_lines()
        next(lines)
        deployment.gateway.signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in deployment.gateway.log)
        assert deployment.gateway.terminate() == 0
    assert "ERROR" not in deployment.gateway.log


def test_a_client_that_takes_nothing_is_hung_up_on(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given: it asks for more than fits between two processes, and reads nothing
    deployment = start_deployment(heartbeat_s=0.5, write_timeout_s=0.5)
    body = json.dumps({**LONG, "max_tokens": 1_000_000}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(
        body
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", deployment.port))
        client.sendall(head + body)
        # then
        wait_until(lambda: gateway_metrics(deployment.gateway)["rose_gateway_events_total"] > 0)
        wait_until(lambda: gateway_metrics(deployment.gateway)["rose_gateway_open_streams"] == 0)
        wait_until(
            lambda: gateway_metrics(deployment.gateway)["rose_gateway_open_connections"] == 1
        )
        # and: what was kept for it is a small part
        assert gateway_metrics(deployment.gateway)["rose_gateway_sent_bytes_total"] < 20_000_000
    assert "ERROR" not in deployment.gateway.log


def test_a_signal_ends_a_gateway_that_hangs_in_c(own_broker: EmbeddedBroker) -> None:
    # given: it waits for a lock that it has, with the interpreter's lock
    program = """
import ctypes, sys
from rose_gateway import server
from rose_gateway.settings import GatewaySettings

async def hang(self):
    c, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    print("hangs", flush=True)
    c.pthread_mutex_lock(lock), c.pthread_mutex_lock(lock)

server._END_S = 0.2
server._Server.main_loop = hang
server.run(GatewaySettings(redis_url=sys.argv[1], port=0, grace_s=0))
"""
    command = [sys.executable, "-c", program, own_broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        try:
            assert gateway.stdout.readline() == b"hangs\n"
            # when
            gateway.send_signal(signal.SIGTERM)
            # then
            assert gateway.wait(90) == -signal.SIGKILL
        finally:
            gateway.kill()
