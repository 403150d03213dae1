"""`rose doctor --gateway`: a gateway with and without workers and keys."""

from collections.abc import Callable

import pytest

from rose.errors import ConfigurationError
from rose_cli.doctor import gateway as gateway_checks
from rose_cli.doctor.findings import Finding, Verdict
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.gateway import running_gateway

pytestmark = needs_redis_server


def test_a_gateway_is_asked_as_its_clients_do(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    def found(url: str) -> Finding:
        (finding,) = gateway_checks.examine_gateway(url)
        return finding

    with running_gateway(broker.url, queue) as gateway:
        # given: no worker yet
        assert found(gateway.url).verdict is Verdict.WARN
        # when
        start_worker()
        wait_until(lambda: found(gateway.url).verdict is Verdict.OK)
        # then: with and without the path
        assert "serves null" in found(gateway.url.removesuffix("/v1")).says
    assert "does not answer" in found(gateway.url).says
    with pytest.raises(ConfigurationError, match="--gateway"):
        found("127.0.0.1:8080")


def test_a_queue_of_a_gateway_that_nobody_serves(
    own_redis: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setenv("ROSE_GATEWAY_QUEUES", "default,gpo")
    with WorkerProcess("w", own_redis.url, engine="null", queue="gpu") as worker:
        worker.wait_ready()
        with Client(redis_url=own_redis.url) as client:
            wait_until(client.queues)
        # when
        shown = run_rose("doctor", "--role", "gateway", ROSE_REDIS_URL=own_redis.url).stdout
    # then
    assert "no worker serves queue gpo, did you mean gpu?" in shown
    assert "ROSE_GATEWAY_QUEUES" in shown


def test_a_proxy_is_not_asked_for_a_gateway_on_loopback(
    broker: EmbeddedBroker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: a proxy that nobody runs
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with running_gateway(broker.url, queue) as gateway:
        # when
        (finding,) = gateway_checks.examine_gateway(gateway.url)
    # then
    assert finding.verdict is Verdict.WARN
    # but for others it is
    (finding,) = gateway_checks.examine_gateway("http://gateway.invalid")
    assert "refused" in finding.says


def test_a_gateway_that_asks_for_a_key(
    own_redis: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    place = {"ROSE_REDIS_URL": own_redis.url}
    settings = ProducerSettings(redis_url=own_redis.url)
    (without,) = gateway_checks.examine_keys(settings)
    secret = run_rose("keys", "create", "mine", **place).stdout.strip()
    with running_gateway(own_redis.url, "q") as gateway:
        # when
        (nobody,) = gateway_checks.examine_gateway(gateway.url)
        monkeypatch.setenv("OPENAI_API_KEY", secret)
        (known,) = gateway_checks.examine_gateway(gateway.url)
    # then
    assert without.verdict is Verdict.WARN
    assert nobody.verdict is Verdict.FAIL
    assert "OPENAI_API_KEY" in nobody.todo
    assert known.verdict is Verdict.WARN
    assert "serves no model" in known.says
    (with_one,) = gateway_checks.examine_keys(settings)
    assert with_one.says == "1 API key: requests need one"
