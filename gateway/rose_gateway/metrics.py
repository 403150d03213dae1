"""The gateway's Prometheus metrics: prefix `rose_gateway_`, base units. docs/metrics.md lists them.

No label has values that come from a request: paths are the templates of routes.
"""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from rose.histogram import Histogram

_DURATION_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_ADDED_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 5)

#: What a request can run into.
LIMITS = (
    "requests",
    "tokens",
    "reads",
    "jobs",
    "tenant",
    "body",
    "bodies",
    "downloads",
    "connections",
    "unread",
    "header_time",
    "body_time",
)

disable_created_metrics()  # type: ignore[no-untyped-call]


class UnlockedCounter(Collector):
    """A counter that counts for every event of every stream: one of `prometheus_client` takes a
    lock each time."""

    def __init__(self, name: str, help_text: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._help = help_text
        self.value = 0
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._help, self.value)


class Metrics:
    """Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        build = Info("rose_gateway_build", "Version of roseinfer", registry=self.registry)
        build.info({"version": version("roseinfer")})
        self._requests = counter(
            "rose_gateway_requests",
            "Requests answered, by route and status",
            ["method", "route", "status"],
        )
        self._duration = Histogram(
            "rose_gateway_response_start_seconds",
            "From a request's first byte to its answer's headers, by route",
            _DURATION_S,
            ["method", "route"],
            series=[],
        )
        self.registry.register(self._duration)
        self.received_bytes = counter("rose_gateway_received_bytes", "Bytes of requests' bodies")
        self.sent_bytes = UnlockedCounter(
            "rose_gateway_sent_bytes", "Bytes of answers' bodies", self.registry
        )
        self.open_connections = gauge("rose_gateway_open_connections", "Connections that are open")
        limits = counter(
            "rose_gateway_limits_hit",
            "Requests or connections refused or closed, by the limit",
            ["limit"],
        )
        self._limits = {name: limits.labels(name) for name in LIMITS}
        self._add_streams()
        self._add_batches()
        self._add_webhooks()

    def _add_streams(self) -> None:
        self.open_streams = Gauge(
            "rose_gateway_open_streams", "Event streams that are open", registry=self.registry
        )
        added = Histogram(
            "rose_gateway_added_latency_seconds",
            "From reading events from Redis to having written them to a client",
            _ADDED_S,
            [],
            series=[()],
        )
        self.registry.register(added)
        self.added_latency = added.series()
        self.events = UnlockedCounter(
            "rose_gateway_events", "Events of jobs passed on to clients", self.registry
        )

    def _add_batches(self) -> None:
        self.unfinished_batches = Gauge(
            "rose_gateway_unfinished_batches",
            "Unfinished batches of all gateways",
            registry=self.registry,
        )
        self.running_batches = Gauge(
            "rose_gateway_running_batches", "Batches that this one runs", registry=self.registry
        )
        lines = Counter(
            "rose_gateway_batch_lines",
            "Lines of batches that have ended, by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self._lines = {name: lines.labels(name) for name in ("completed", "failed")}

    def _add_webhooks(self) -> None:
        attempts = Counter(
            "rose_gateway_webhook_attempts",
            "Attempts to deliver an event to a webhook, by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self._attempts = {name: attempts.labels(name) for name in ("delivered", "failed", "dead")}
        self._undelivered = Gauge(
            "rose_gateway_undelivered_webhooks",
            "Events that are to be delivered by any gateway",
            registry=self.registry,
        )
        self._dead = Gauge(
            "rose_gateway_dead_webhooks", "Events that were given up", registry=self.registry
        )

    def webhook_attempted(self, outcome: str) -> None:
        """`outcome`: delivered, failed, or dead: failed for the last time."""
        self._attempts[outcome].inc()

    def webhook_backlog(self, undelivered: int, dead: int) -> None:
        self._undelivered.set(undelivered)
        self._dead.set(dead)

    def limit_hit(self, name: str) -> None:
        """`name`: one of LIMITS."""
        self._limits[name].inc()

    def batch_lines_ended(self, completed: int, failed: int) -> None:
        self._lines["completed"].inc(completed)
        self._lines["failed"].inc(failed)

    def answered(self, method: str, route: str, status: int) -> None:
        self._requests.labels(method, route, str(status)).inc()

    def started(self, method: str, route: str, after_s: float) -> None:
        self._duration.series(method, route).observe(after_s)
