"""What the worker exports to Prometheus: prefix `rose_`, base units, label `model`.

Tokens per second is `rate(rose_generated_tokens_total[1m])`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from producer.results import QueueStatus
from protocol import Event, FinishedEvent
from worker.engine import EngineStats, ModelInfo
from worker.jobs import HeldJob

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_STEP_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    def __init__(self, model: ModelInfo, capacity: int) -> None:
        self.registry = CollectorRegistry()
        self._model = model.name
        self._totals = {"preemptions": 0, "prefix_query": 0, "prefix_hit": 0}
        self._make_gauges()
        self._make_counters()
        self._make_histograms()
        self._batch_capacity.set(capacity)
        Info("rose_build", "Version of roseinfer", registry=self.registry).info(
            {"version": version("roseinfer")}
        )
        Info("rose_model", "The model served", ["model"], registry=self.registry).labels(
            model.name
        ).info(
            {
                "device": model.device,
                "dtype": model.dtype,
                "context_tokens": str(model.context_tokens),
            }
        )

    def _make_gauges(self) -> None:
        self._batch = self._gauge("batch_sequences", "Requests in the running batch")
        self._batch_capacity = self._gauge("batch_capacity_sequences", "Slots of the batch")
        self._kv_usage = self._gauge("kv_cache_usage_ratio", "Used share of the KV cache")
        self._lag = self._gauge("queue_lag_jobs", "Jobs that no worker has read yet")
        self._queue_pending = self._gauge("queue_pending_jobs", "Jobs that workers hold")
        self._oldest = self._gauge(
            "queue_oldest_pending_age_seconds", "Age of the oldest job that a worker holds"
        )
        self._dead = self._gauge("dead_letter_jobs", "Dead letters kept")

    def _make_counters(self) -> None:
        self._jobs = self._counter("jobs", "Jobs ended, by outcome", "outcome")
        self._reasons = self._counter("finish_reasons", "Jobs finished, by reason", "reason")
        self._redelivered = self._counter("jobs_redelivered", "Jobs taken over by their lease")
        self._fenced = self._counter("fenced_appends", "Appends refused: the job has moved on")
        self._preemptions = self._counter("preemptions", "Requests that gave up their KV blocks")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of jobs taken")
        self._generated = self._counter("generated_tokens", "Tokens generated and logged")
        self._prefix_query = self._counter(
            "prefix_cache_query_tokens", "Tokens looked up in the prefix cache"
        )
        self._prefix_hit = self._counter(
            "prefix_cache_hit_tokens", "Tokens found in the prefix cache"
        )
        self._redis_errors = self._counter("redis_errors", "Failed Redis calls", "op")
        self._invalid = self._counter("invalid_messages", "Jobs refused as dead letters")

    def _make_histograms(self) -> None:
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From enqueue to the first token logged", _LATENCY_S
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a job", _TOKEN_S
        )
        self._queue_wait = self._histogram(
            "queue_wait_seconds", "From enqueue to the first take", _LATENCY_S
        )
        self._duration = self._histogram(
            "job_duration_seconds", "From enqueue to the terminal event", _LATENCY_S
        )
        self._step = self._histogram(
            "step_duration_seconds", "Engine step, by phase", _STEP_S, "phase"
        )
        self._batch_size = self._histogram(
            "batch_size_sequences", "Requests computed in a step", _BATCH
        )

    def observe_step(self, stats: EngineStats) -> None:
        self._batch_size.observe(stats.step_sequences)
        for phase, seconds in stats.phase_s.items():
            self._step.labels(phase).observe(seconds)

    def observe_stats(self, stats: EngineStats) -> None:
        self._batch.set(stats.batch_sequences)
        self._kv_usage.set(stats.kv_usage_ratio)
        self._advance(self._preemptions, "preemptions", stats.preemptions_total)
        self._advance(self._prefix_query, "prefix_query", stats.prefix_query_tokens_total)
        self._advance(self._prefix_hit, "prefix_hit", stats.prefix_hit_tokens_total)

    def observe_take(self, job: HeldJob) -> None:
        self._prompt_tokens.inc(job.prompt_tokens)
        if not job.resumed:
            self._queue_wait.observe(job.taken_at - job.enqueued_at)

    def observe_tokens(self, job: HeldJob, count: int, now: float) -> None:
        if job.last_token_at is not None:
            self._inter_token.observe((now - job.last_token_at) / count)
        elif not job.resumed:
            self._ttft.observe(now - job.enqueued_at)
        job.last_token_at = now

    def generated(self, count: int) -> None:
        self._generated.inc(count)

    def observe_end(self, job: HeldJob, event: Event, now: float) -> None:
        self._jobs.labels(event.type).inc()
        if isinstance(event, FinishedEvent):
            self._reasons.labels(event.reason).inc()
        self._duration.observe(now - job.enqueued_at)

    def observe_queue(self, status: QueueStatus) -> None:
        self._lag.set(sum(status.waiting.values()))
        self._queue_pending.set(status.running)
        began_ms = status.oldest_running_ms
        self._oldest.set(0 if began_ms is None else max(0.0, time.time() - began_ms / 1000))
        self._dead.set(status.dead_letters)

    def redelivered(self, count: int) -> None:
        self._redelivered.inc(count)

    def fenced(self) -> None:
        self._fenced.inc()

    def redis_error(self, op: str) -> None:
        self._redis_errors.labels(op).inc()

    def invalid_message(self) -> None:
        self._invalid.inc()

    def _advance(self, counter: Counter, name: str, total: int) -> None:
        """The engine counts for itself; the counter follows its total."""
        counter.inc(total - self._totals[name])
        self._totals[name] = total

    # One family each, already bound to this worker's model: `x.inc()` or `x.labels(phase).inc()`.

    def _gauge(self, name: str, help_text: str) -> Gauge:
        gauge = Gauge(f"rose_{name}", help_text, ["model"], registry=self.registry)
        return gauge.labels(self._model)

    def _counter(self, name: str, help_text: str, label: str | None = None) -> Any:
        family = Counter(f"rose_{name}", help_text, self._labels(label), registry=self.registry)
        return family.labels(self._model) if label is None else _Bound(family, self._model)

    def _histogram(
        self, name: str, help_text: str, buckets: Sequence[float], label: str | None = None
    ) -> Any:
        family = Histogram(
            f"rose_{name}",
            help_text,
            self._labels(label),
            registry=self.registry,
            buckets=buckets,
        )
        return family.labels(self._model) if label is None else _Bound(family, self._model)

    @staticmethod
    def _labels(label: str | None) -> list[str]:
        return ["model"] if label is None else ["model", label]


class _Bound:
    """A family with the model's label filled in and one more to go."""

    def __init__(self, family: Counter | Histogram, model: str) -> None:
        self._family = family
        self._model = model

    def labels(self, value: str) -> Any:
        return self._family.labels(self._model, value)
