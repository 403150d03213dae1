"""Tenants with limits, and jobs of theirs."""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import SecretStr

from benchmarks.queue.ours import PROMPT
from rose.protocol.tenants import TenantLimits
from rose_cli.local.services import WorkerProcess
from rose_producer import Request
from rose_producer.settings import ProducerSettings
from rose_producer.tenants import Tenants

#: More than any case enqueues.
NO_LIMIT: dict[str, Any] = {"max_queued_jobs": 10**8, "max_queued_bytes": 10**12}

_SIGMA = 0.7
_MIN_MEAN, _MAX_MEAN = 5, 100
_MAX_TOKENS = 300


def request(tenant: str, new_tokens: int = 1) -> Request:
    return Request(PROMPT, sampling={"max_new_tokens": new_tokens}, tenant=tenant)


def set_weights(url: str, weights: Mapping[str, int], partitions: int) -> None:
    settings = ProducerSettings(redis_url=SecretStr(url), partitions=partitions)
    with Tenants(settings) as tenants:
        for name, weight in weights.items():
            tenants.set(name, TenantLimits(weight=weight))


def worker(name: str, url: str, **settings: Any) -> WorkerProcess:
    return WorkerProcess(name, url, engine="null", log_level="warning", **(NO_LIMIT | settings))


class Users:
    """Tenants of drawn weights, and answers of very different lengths: each tenant has a mean of
    its own, 5 to 100 tokens, around which its answers scatter by a log-normal law."""

    def __init__(self, count: int, seed: int) -> None:
        draw = random.Random(f"{seed}:tenants")  # noqa: S311
        self.weights = {f"tenant-{n}": draw.randint(1, 10) for n in range(count)}
        means = math.log(_MIN_MEAN), math.log(_MAX_MEAN)
        self._lengths = {
            name: _lengths(
                random.Random(f"{seed}:{name}"),  # noqa: S311
                draw.uniform(*means),
            )
            for name in self.weights
        }

    def requests(self, name: str, count: int) -> list[Request]:
        return [request(name, next(self._lengths[name])) for _ in range(count)]


def _lengths(draw: random.Random, mean: float) -> Iterator[int]:
    while True:
        yield max(1, min(_MAX_TOKENS, round(draw.lognormvariate(mean, _SIGMA))))
