"""`rose doctor`, the part about gateways: are there API keys, and does a gateway serve?"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import redis

from rose.errors import BrokerUnavailable, ConfigurationError, MalformedMessage
from rose.transport import broker_errors
from rose.transport.connection import connect
from rose.web_access import is_loopback
from rose_cli.doctor.findings import Finding, fail, ok, warn
from rose_cli.queue_troubles import nobody_serves, served_queues
from rose_gateway.access.keys import KEYS
from rose_producer import Client, ProducerSettings

_TIMEOUT_S = 10.0
_MAX_BYTES = 1024 * 1024


def examine_keys(settings: ProducerSettings) -> Iterator[Finding]:
    """Whether there are API keys. Nothing where Redis cannot be asked: that was said already."""
    try:
        with broker_errors():
            client = connect(settings)
            count = int(client.hlen(KEYS))
            client.close()
    except (BrokerUnavailable, redis.RedisError):
        return
    if count:
        yield ok("keys", f"{count} API key{'' if count == 1 else 's'}: requests need one")
    else:
        yield warn(
            "keys",
            "no API key: a gateway serves everybody, and starts on loopback only",
            "make one: rose keys create NAME",
        )


def examine_queues(settings: ProducerSettings, queues: Sequence[str]) -> Iterator[Finding]:
    """Whether each queue of a gateway, beside the one of `settings`, has a worker. Nothing where
    Redis cannot be asked: that was said already."""
    try:
        with Client(settings) as client:
            served = served_queues(client)
    except (BrokerUnavailable, MalformedMessage):
        return
    for queue in queues:
        if queue not in served and queue != settings.queue:
            todo = "start one: rose worker, or set ROSE_GATEWAY_QUEUES"
            yield warn("queue", nobody_serves(queue, served), todo)


def examine_gateway(url: str) -> Iterator[Finding]:
    """A gateway, asked as its clients do: with the key in OPENAI_API_KEY, if there is one.

    Raises: ConfigurationError: that is no URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"--gateway {url!r}: give its URL, such as http://127.0.0.1:8080")
    origin = url.rstrip("/").removesuffix("/v1")
    status, body, took_s = _get(f"{origin}/v1/models")
    if status == 0:
        yield fail("gateway", f"{origin} does not answer: {body}", "start it: rose gateway")
    elif status == 401:
        yield fail(
            "gateway",
            f"{origin} asks for an API key, and does not know the one in OPENAI_API_KEY",
            "set OPENAI_API_KEY to a secret that rose keys create has printed",
        )
    elif status != 200:
        yield fail("gateway", f"{origin} answers {status}: {_message(body)}", "see its log")
    else:
        yield _models(origin, body, took_s)


def _models(origin: str, body: str, took_s: float) -> Finding:
    try:
        names = [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return fail("gateway", f"{origin} is no gateway", "give the URL of `rose gateway`")
    if not names:
        return warn("gateway", f"{origin} serves no model", "start a worker: rose worker")
    return ok("gateway", f"{origin} serves {', '.join(names)}, answered in {took_s * 1000:.0f} ms")


def _get(url: str) -> tuple[int, str, float]:
    """Status, body and seconds; status 0 and the reason where nothing answers."""
    headers = {}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http or https alone
    began = time.monotonic()
    try:
        with _opener(url).open(request, timeout=_TIMEOUT_S) as reply:
            body: bytes = reply.read(_MAX_BYTES)
            return reply.status, body.decode(errors="replace"), time.monotonic() - began
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(_MAX_BYTES).decode(errors="replace"), 0.0
    except OSError as error:
        return 0, str(getattr(error, "reason", error)), 0.0


def _opener(url: str) -> urllib.request.OpenerDirector:
    """With the proxy that the environment names, but for loopback: a proxy's is another one."""
    proxies: dict[str, str] | None = {} if is_loopback(urlsplit(url).hostname or "") else None
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies))


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(body.split())[:80]
