"""A running deployment: a queue, a worker with the null engine, and a gateway, all real."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from rose_cli.local.services import GatewayProcess, WorkerProcess
from tests.support.echo import serving


@dataclass(frozen=True, slots=True)
class Deployment:
    redis_url: str
    queue: str
    gateway: GatewayProcess
    workers: Sequence[WorkerProcess]

    @property
    def origin(self) -> str:
        """http://host:port"""
        return self.gateway.url.removesuffix("/v1")

    @property
    def port(self) -> int:
        return self.gateway.http_port

    @property
    def url(self) -> str:
        """The base URL for OpenAI's SDKs."""
        return self.gateway.url

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """`path`: below /v1."""
        return httpx.request(method, f"{self.url}{path}", **{"timeout": 90, **options})

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def openai(self, **options: Any) -> OpenAI:
        """OpenAI's own client. Close it, or use it as a context."""
        return OpenAI(base_url=self.url, **{"api_key": "none", "max_retries": 0, **options})


@contextmanager
def running_gateway(redis_url: str, queue: str, **settings: Any) -> Iterator[GatewayProcess]:
    """Ready. It serves one queue, which need not have workers."""
    with GatewayProcess("gateway", redis_url, queue=queue, **settings) as gateway:
        gateway.wait_ready()
        yield gateway


@contextmanager
def running_deployment(
    redis_url: str,
    queue: str,
    *,
    worker: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Deployment]:
    """`worker`: its settings; the null engine if not told otherwise. `settings`: the gateway's."""
    with ExitStack() as stack:
        one = stack.enter_context(serving(f"{queue}-w", redis_url, queue=queue, **(worker or {})))
        gateway = stack.enter_context(running_gateway(redis_url, queue, **settings))
        yield Deployment(redis_url, queue, gateway, (one,))


def gateway_metrics(gateway: GatewayProcess) -> dict[str, float]:
    """Samples by name, added up over their labels."""
    url = f"http://127.0.0.1:{gateway.http_port}/metrics"
    while (answer := httpx.get(url, timeout=90)).status_code == 408:  # this client was too slow
        pass
    page = answer.text
    samples: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            samples[sample.name] += sample.value
    return dict(samples)
