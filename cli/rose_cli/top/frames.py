"""What `rose top` shows at one moment, and how rates come from the one before."""

from __future__ import annotations

import http.client
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from rose.errors import ConfigurationError
from rose.protocol.status import QueueStatus
from rose_producer import Client

DEFAULT_PORT = 9400

_HISTORY = 60
_TIMEOUT_S = 2.0
_MAX_BYTES = 4 * 1024 * 1024

#: What a gateway has, and nobody else.
_GATEWAY = "rose_gateway_build_info"

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Scrape:
    """`samples`: those of the same name added up, over all their labels."""

    address: str
    worker: str | None
    """None: a gateway"""
    samples: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    """of its model: name, device, dtype"""


@dataclass(slots=True)
class WorkerRow:
    """A worker of the queue. One that does not answer has no `address`."""

    name: str
    leases: int
    address: str | None = None
    ready: bool = False
    device: str = ""
    batch: int = 0
    capacity: int = 0
    kv_usage: float = 0.0
    tokens_per_s: float = 0.0
    jobs_ended: int = 0


@dataclass(slots=True)
class GatewayRow:
    """A gateway that answers. It may serve other queues, too."""

    address: str
    open_streams: int
    requests_per_s: float
    events_per_s: float
    limits_hit: int
    """requests and connections that it has refused or closed for a limit"""


@dataclass(slots=True)
class Frame:
    """One look. Ages are in seconds; None where there is no such job, or nobody says."""

    at: float
    queue: str
    model: str | None
    waiting: dict[str, int]
    running: int
    dead_letters: int
    oldest_waiting_s: float | None
    oldest_running_s: float | None
    workers: list[WorkerRow]
    other_workers: int
    """that answer too, and work on another queue or another Redis"""
    tokens_per_s: float
    gateways: list[GatewayRow] = field(default_factory=list)
    history: list[float] = field(default_factory=list)
    """tokens a second of the looks before, this one last"""


class Top:
    """Looks at Redis and at the workers; rates are those since the look before."""

    def __init__(self, client: Client, places: Sequence[Address]) -> None:
        self._client = client
        self._places = places
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        self._known: set[str] = set()
        self._history: deque[float] = deque(maxlen=_HISTORY)

    def look(self) -> Frame:
        """Raises: BrokerUnavailable, MalformedMessage"""
        status = self._client.queue_status()
        # One that has lost its Redis is no longer in the status, and stays to be seen.
        self._known |= status.workers.keys()
        answers = _scrape_all(self._places)
        gateways = [self._gateway(scrape) for scrape in answers if scrape.worker is None]
        scrapes = [scrape for scrape in answers if scrape.worker in self._known]
        workers = [self._row(scrape.worker or "", scrape, status) for scrape in scrapes]
        silent = status.workers.keys() - {row.name for row in workers}
        workers += [WorkerRow(name, status.workers[name]) for name in silent]
        workers.sort(key=lambda row: row.name)
        rate = sum(row.tokens_per_s for row in workers)
        self._history.append(rate)
        return Frame(
            at=time.time(),
            queue=status.queue,
            model=status.model,
            waiting=status.waiting,
            running=status.running,
            dead_letters=status.dead_letters,
            oldest_waiting_s=_oldest_waiting(scrapes, status),
            oldest_running_s=status.age_s(status.oldest_running_ms),
            workers=workers,
            other_workers=len(answers) - len(scrapes) - len(gateways),
            tokens_per_s=rate,
            gateways=sorted(gateways, key=lambda row: row.address),
            history=list(self._history),
        )

    def _gateway(self, scrape: Scrape) -> GatewayRow:
        return GatewayRow(
            address=scrape.address,
            open_streams=int(scrape.samples.get("rose_gateway_open_streams", 0)),
            requests_per_s=self._rate(scrape, "rose_gateway_requests_total"),
            events_per_s=self._rate(scrape, "rose_gateway_events_total"),
            limits_hit=int(scrape.samples.get("rose_gateway_limits_hit_total", 0)),
        )

    def _row(self, name: str, scrape: Scrape, status: QueueStatus) -> WorkerRow:
        samples = scrape.samples
        return WorkerRow(
            name=name,
            leases=status.workers.get(name, 0),
            address=scrape.address,
            ready=bool(samples.get("rose_ready", 0)),
            device=scrape.labels.get("device", ""),
            batch=int(samples.get("rose_batch_sequences", 0)),
            capacity=int(samples.get("rose_batch_capacity_sequences", 0)),
            kv_usage=samples.get("rose_kv_cache_usage_ratio", 0.0),
            tokens_per_s=self._rate(scrape, "rose_generated_tokens_total"),
            jobs_ended=int(samples.get("rose_jobs_total", 0)),
        )

    def _rate(self, scrape: Scrape, counter: str) -> float:
        """0 for one that is seen for the first time, or has begun anew."""
        now, total = time.monotonic(), scrape.samples.get(counter, 0.0)
        source = scrape.worker or scrape.address
        at, before = self._before.get((source, counter), (now, total))
        self._before[source, counter] = (now, total)
        return max(0.0, total - before) / (now - at) if now > at else 0.0


def _oldest_waiting(scrapes: Sequence[Scrape], status: QueueStatus) -> float | None:
    """One worker reads that for all."""
    if not sum(status.waiting.values()):
        return None
    name = "rose_queue_oldest_waiting_age_seconds"
    return max((s.samples[name] for s in scrapes if name in s.samples), default=None)


# The metrics that workers and gateways serve


def addresses(places: Iterable[str]) -> list[Address]:
    """`HOST` or `HOST:PORT` each; a name that stands for many addresses is all of them.

    Raises: ConfigurationError
    """
    found: dict[Address, None] = {}
    for place in places:
        host, _, port = place.removeprefix("http://").partition("/")[0].partition(":")
        if not host or not (port or str(DEFAULT_PORT)).isdecimal():
            raise ConfigurationError(f"--metrics {place!r}: give HOST or HOST:PORT")
        try:
            known = socket.getaddrinfo(host, int(port or DEFAULT_PORT), type=socket.SOCK_STREAM)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"--metrics {place!r}: no such host ({error})") from None
        found |= dict.fromkeys((str(to[0]), int(to[1])) for *_, to in known)
    return list(found)


def _scrape_all(places: Iterable[Address]) -> list[Scrape]:
    """Of those that answer."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        return [found for found in pool.map(scrape, places) if found is not None]


def scrape(place: Address, timeout_s: float = _TIMEOUT_S) -> Scrape | None:
    """None where neither a worker nor a gateway answers."""
    connection = http.client.HTTPConnection(*place, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read(_MAX_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    address = f"{place[0]}:{place[1]}"
    if answer.status != 200:
        return None
    try:
        found = _parse(body, address, answer.getheader("Rose-Worker"))
    except ValueError:
        return None  # cut off, or of something else
    return found if found.worker is not None or _GATEWAY in found.samples else None


def _parse(text: str, address: str, worker: str | None) -> Scrape:
    """Raises: ValueError: these are no metrics."""
    scrape = Scrape(address, worker)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "rose_model_info":
                scrape.labels.update(sample.labels)
            if not sample.name.endswith("_bucket"):
                before = scrape.samples.get(sample.name, 0.0)
                scrape.samples[sample.name] = before + sample.value
    return scrape
