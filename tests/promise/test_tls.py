"""TLS on real redis-servers: verified by default; a private CA and client certificates by URL."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import httpx2 as httpx
import pytest
import redis.asyncio

from rose.errors import BrokerUnavailable
from rose.transport.async_server import AsyncServer, ConnectionLimit
from rose.transport.pipeline import PipelinedConnection
from rose.transport.redis_internals import async_connector
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client
from tests.conftest import needs_redis_server
from tests.support.bench import until
from tests.support.certificates import Certificates
from tests.support.command import run_rose
from tests.support.echo import serving
from tests.support.gateway import running_gateway

pytestmark = needs_redis_server

QUEUE = "tls"
# A third of a lease is the longest that a connection may take, and a handshake takes its time.
PATIENT = {"lease_s": 60}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


Start = Callable[..., str]


@pytest.fixture(scope="module")
def serve(certificates: Certificates) -> Iterator[Start]:
    """Starts a server that speaks nothing but TLS; returns its URL without any parameters."""
    with ExitStack() as stack:

        def start(certificate: str = "server", clients: str = "no") -> str:
            options = {
                "port": "0",
                "tls-port": "{port}",
                **certificates.shown_by(certificate, clients),
            }
            reach = "rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none&ssl_check_hostname=false"
            server = EmbeddedBroker(
                fake=False,
                options={"appendonly": "no", **options},
                url=f"{reach}&{certificates.identity()}",
            )
            return stack.enter_context(server).url.partition("?")[0]

        yield start


@pytest.fixture(scope="module")
def open_server(serve: Start) -> str:
    """Asks no client for a certificate."""
    return serve()


@pytest.fixture(scope="module")
def mutual_server(serve: Start) -> str:
    """Serves only clients with a certificate."""
    return serve(clients="yes")


def rose(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run_rose(*words, ROSE_REDIS_URL=url, ROSE_QUEUE=QUEUE, ROSE_REDIS_RETRIES="0")


@pytest.mark.parametrize("kind", ["server certificate", "client certificate too"])
def test_everything_works_over_tls(
    request: pytest.FixtureRequest, certificates: Certificates, kind: str
) -> None:
    # given
    if kind == "server certificate":
        url = f"{request.getfixturevalue('open_server')}?{certificates.authority()}"
    else:
        parameters = f"{certificates.authority()}&{certificates.identity()}"
        url = f"{request.getfixturevalue('mutual_server')}?{parameters}"

    async def submit_async() -> str:
        async with AsyncClient(redis_url=url, queue=QUEUE) as client:
            job = await client.submit("ab", max_new_tokens=3)
            return (await job.result(90)).text

    with serving("w", url, queue=QUEUE, **PATIENT):
        # when
        with Client(redis_url=url, queue=QUEUE) as client:
            by_sync = client.submit("ab", max_new_tokens=3).result(90).text
        by_async = asyncio.run(submit_async())
        by_command = rose(url, "submit", "ab", "--stream", "--max-new-tokens=3").stdout
    # then
    assert by_sync == by_async == "97 98 97 "
    assert by_command.endswith("97 98 97 \n")


def test_logs_and_records_of_many_tls_records_arrive_whole(
    open_server: str, certificates: Certificates
) -> None:
    # given: a log of thousands of tokens, and a request of 100 KB that the next one repeats
    url, queue = f"{open_server}?{certificates.authority()}", "tls-long"
    prompt, tokens = "ab" * 50_000, 20_000
    answer = "97 98 " * (tokens // 2)

    async def read_async(job_id: str) -> str:
        async with AsyncClient(redis_url=url, queue=queue) as client:
            jobs = [client.job(job_id) for _ in range(5)]
            texts = {result.text for result in await asyncio.gather(*(j.result(90) for j in jobs))}
            (text,) = texts
            return text

    with (
        serving("long", url, queue=queue, **PATIENT),
        running_gateway(url, queue) as gateway,
        Client(redis_url=url, queue=queue) as client,
    ):
        # when
        job = client.submit(prompt, max_new_tokens=tokens)
        live = job.result(90).text
        # then: as it comes, and from the log
        assert live == job.result(90).text == asyncio.run(read_async(job.id)) == answer
        env = {"ROSE_REDIS_URL": url, "ROSE_QUEUE": queue}
        assert answer in run_rose("result", job.id, **env).stdout
        # and through a gateway, which reads the first request with the second
        asked = {"model": "null", "max_output_tokens": tokens}
        posts = partial(httpx.post, f"{gateway.url}/responses", timeout=90)
        first = posts(json={**asked, "input": prompt}).json()
        assert first["output"][0]["content"][0]["text"] == answer
        then = {"input": "c", "previous_response_id": first["id"], "max_output_tokens": 2}
        assert posts(json={**asked, **then}).json()["output"][0]["content"][0]["text"] == "97 98 "
        # and to those who look
        for words in (["status"], ["status", job.id], ["keys", "list"], ["tenants", "list"]):
            assert run_rose(*words, **env).returncode == 0
        assert "appendonly" in run_rose("doctor", **env).stdout


async def test_replies_of_many_tls_records_arrive_whole(
    open_server: str, certificates: Certificates
) -> None:
    # given: a record holds 16 KiB
    values = [bytes([65 + n % 26]) * (1 + n * 1500) for n in range(60)]
    async with redis.asyncio.from_url(
        f"{open_server}?{certificates.authority()}", protocol=2
    ) as client:
        server = AsyncServer(async_connector(client.connection_pool), 30, ConnectionLimit(1))
        await server.exchange([("SET", f"value-{n}", value) for n, value in enumerate(values)])
        # when
        replies = await asyncio.gather(
            *(server.exchange([("GET", f"value-{n}")]) for n in range(len(values)))
        )
        # then
        assert replies == [[value] for value in values]
        await server.aclose()


async def test_what_is_sent_after_the_end_is_lost_with_the_connection(
    open_server: str, certificates: Certificates
) -> None:
    lost: list[str] = []
    async with redis.asyncio.from_url(
        f"{open_server}?{certificates.authority()}", protocol=2
    ) as client:
        # given
        connection = PipelinedConnection(lambda reply: None, lost.append)
        await connection.open(async_connector(client.connection_pool)(), 30)
        # when
        connection.close("by hand")
        connection.send([("PING",)])
        # then: told once, and later
        assert lost == []
        await until(lambda: lost == ["by hand"])


def test_a_server_of_an_unknown_authority_is_refused(
    open_server: str, certificates: Certificates
) -> None:
    for url in (open_server, f"{open_server}?{certificates.authority('stranger')}"):
        assert_refused(url, "certificate verify failed")


def test_a_server_with_another_servers_certificate_is_refused(
    serve: Start, certificates: Certificates
) -> None:
    url = f"{serve('elsewhere')}?{certificates.authority()}"
    assert_refused(url, "certificate is not valid for '127.0.0.1'")


def test_a_client_without_its_certificate_is_refused(
    mutual_server: str, certificates: Certificates
) -> None:
    assert_refused(f"{mutual_server}?{certificates.authority()}", "Redis cannot be used")


def test_plain_text_to_a_tls_port_is_refused(open_server: str) -> None:
    assert_refused(open_server.replace("rediss:", "redis:"), "Redis cannot be used")


def assert_refused(url: str, says: str) -> None:
    """By both clients, and by both kinds of command in one line."""

    async def submit_async() -> None:
        async with AsyncClient(redis_url=url, redis_retries=0) as client:
            await client.submit("x")

    with (
        Client(redis_url=url, redis_retries=0) as client,
        pytest.raises(BrokerUnavailable, match=says),
    ):
        client.submit("x")
    with pytest.raises(BrokerUnavailable, match=says):
        asyncio.run(submit_async())
    for words in (["submit", "x"], ["worker", "--engine=null", "--http-port=0"]):
        ended = rose(url, *words)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
