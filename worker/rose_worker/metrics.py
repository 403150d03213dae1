"""The worker's Prometheus metrics: prefix `rose_`, base units, label `model`.

docs/metrics.md lists them. Every series is exported from the start with value 0, since `rate` and
`increase` do not see the first event of a series that begins with it. The exception are the gauges
of the queue: only the worker that reads the queue for all exports them (`rose_worker.watch`).
"""

from collections.abc import Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, disable_created_metrics

from rose.engine_records import SchedulerStats, SecondTierStats
from rose.histogram import Histogram, Series
from rose.protocol import Event, FinishedEvent
from rose.protocol.status import QueueStatus
from rose.protocol.tenants import TenantsStatus
from rose_worker.engine import ModelInfo
from rose_worker.jobs import HeldJob
from rose_worker.tenant_metrics import TenantGauges

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_STEP_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

# The values of labels. None comes from a job or a user.
_OUTCOMES = ("finished", "failed", "cancelled", "dead_letter")
_FINISH_REASONS = ("eos", "stop", "length")
_WHOSE = ("own", "other", "several", "nobody")
_OPS = ("intake", "publish", "renew", "control", "watch")
_TIER_EVENTS = ("written", "dropped", "evicted", "damaged")
_PHASES = ("schedule", "forward", "sample", "postprocess")
_CRASH_LOOP = "crash_loop"
_DEAD_LETTER_REASONS = (
    "malformed_message",
    "invalid_parameter",
    "prompt_too_long",
    "job_too_large",
    _CRASH_LOOP,
)

_QUEUE_GAUGES = {
    "queue_lag_jobs": "Jobs that no worker has read yet",
    "queue_pending_jobs": "Jobs that workers hold",
    "queue_oldest_pending_age_seconds": ("Age of the oldest job that a worker holds; 0 if none"),
    "queue_oldest_waiting_age_seconds": (
        "Age of the oldest job that no worker has read; 0 if none"
    ),
    "queue_tokens": "Estimated tokens of all unfinished jobs",
    "queue_lost_workers": "Workers that fell silent within the last hour and had not drained",
    "dead_letter_jobs": "Dead letters kept",
}

# A `_created` sample for each series would nearly double their number.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Only the event loop's thread writes. Any thread may read `registry`."""

    def __init__(self, model: ModelInfo, capacity: int) -> None:
        self.registry = CollectorRegistry()
        self._model = model.name
        self._stats = SchedulerStats()
        self._make_gauges()
        self._make_counters()
        self._make_histograms()
        self._batch_capacity.set(capacity)
        self._describe(model)

    def _describe(self, model: ModelInfo) -> None:
        build = Info("rose_build", "Version of roseinfer", registry=self.registry)
        build.info({"version": version("roseinfer")})
        served = Info("rose_model", "The model served", ["model"], registry=self.registry)
        served.labels(model.name).info(
            {
                "device": model.device,
                "dtype": model.dtype,
                "context_tokens": str(model.context_tokens),
            }
        )

    def _make_gauges(self) -> None:
        self.ready = self._gauge(
            "ready", "1 while Redis can be reached and jobs can be taken, else 0"
        )
        self.redis_full = self._gauge(
            "redis_full", "1 while Redis is at its memory limit and refuses new jobs, else 0"
        )
        self._batch = self._gauge("batch_sequences", "Requests in the running batch")
        self._batch_capacity = self._gauge("batch_capacity_sequences", "Slots of the batch")
        self._kv_usage = self._gauge("kv_cache_usage_ratio", "Used share of the KV cache")
        tier = self._gauge("second_tier_bytes", "What the second tier of the prefix cache holds")
        tier.set_function(lambda: self._stats.second_tier.held_bytes)
        # Read at a scrape, not set at each step.
        self._batch.set_function(lambda: self._stats.running)
        self._kv_usage.set_function(lambda: self._stats.kv_usage_ratio)
        # Not bound to labels: they have no series until this worker reads the queue.
        self._queue = {
            name: Gauge(f"rose_{name}", help_text, ["model", "queue"], registry=self.registry)
            for name, help_text in _QUEUE_GAUGES.items()
        }
        self._tenants = TenantGauges(self._model)
        self.registry.register(self._tenants)

    def _make_counters(self) -> None:
        self._jobs = self._counters("jobs", "Jobs ended, by outcome", "outcome", _OUTCOMES)
        self._reasons = self._counters(
            "finish_reasons", "Jobs finished, by reason", "reason", _FINISH_REASONS
        )
        self._dead_letters = Counter(
            "rose_dead_letters",
            "Jobs given up, by the code of the error",
            ["model", "reason"],
            registry=self.registry,
        )
        for reason in _DEAD_LETTER_REASONS:
            self._dead_letters.labels(self._model, reason)
        self._invalid = self._counter("invalid_messages", "Jobs given up before they started")
        self.redelivered = self._counter(
            "jobs_redelivered", "Jobs taken over from workers that lost them or handed them back"
        )
        self.handed_back = self._counter(
            "jobs_handed_back", "Jobs handed back for one of a higher priority"
        )
        self.fenced = self._counter(
            "fenced_appends", "Appends rejected because another worker has the job"
        )
        self.leases_lost = self._counter(
            "leases_lost", "Leases found lost at their renewal, because another worker has the job"
        )
        self._preemptions = self._counter("preemptions", "Requests preempted for want of KV blocks")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of jobs taken")
        self.generated_tokens = self._counter("generated_tokens", "Tokens generated and logged")
        self._encoded = self._counter(
            "encoded_inputs", "Inputs embedded or scored, of jobs that finished"
        )
        self._prefix_query = self._counter(
            "prefix_cache_query_tokens", "Tokens looked up in the prefix cache"
        )
        self._prefix_hit = self._counter(
            "prefix_cache_hit_tokens", "Tokens found in the prefix cache, in any tier"
        )
        self._tier_query = self._counter(
            "second_tier_query_tokens",
            "Tokens that the KV cache lacked, looked up in the second tier",
        )
        self._tier_hit = self._counter("second_tier_hit_tokens", "Tokens found in the second tier")
        self._tier_written = self._counter(
            "second_tier_written_bytes", "Written to the second tier by this worker"
        )
        self._tier_events = self._counters(
            "second_tier_blocks",
            "Blocks and states: written to the second tier, dropped before they were, evicted for "
            "others, or damaged and not used",
            "event",
            _TIER_EVENTS,
        )
        self._placed = self._counters(
            "placed_jobs",
            "Jobs started with placement, by who had the beginning of the prompt in its cache",
            "whose",
            _WHOSE,
        )
        self._placed_tokens = self._counter(
            "placed_tokens", "Estimated prompt tokens that this worker had of jobs placed with it"
        )
        self._drafted = self._counter(
            "drafted_tokens", "Tokens drafted by speculation and verified"
        )
        self._accepted = self._counter("accepted_tokens", "Drafted tokens that were accepted")
        self.redis_errors = self._counters("redis_errors", "Failed Redis calls", "op", _OPS)

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
        self._placement_wait = self._histogram(
            "placement_wait_seconds", "For which a job stood aside for a worker", _LATENCY_S
        )
        self._duration = self._histogram(
            "job_duration_seconds", "From enqueue to the terminal event", _LATENCY_S
        )
        self._batch_size = self._histogram(
            "batch_size_sequences", "Requests computed in a step", _BATCH
        )
        step = Histogram(
            "rose_step_duration_seconds",
            "Engine step, by phase",
            _STEP_S,
            ["model", "phase"],
            [(self._model, phase) for phase in _PHASES],
        )
        self.registry.register(step)
        self._step = {phase: step.series(self._model, phase) for phase in _PHASES}

    # The engine

    def observe_step(self, stats: SchedulerStats) -> None:
        self._batch_size.observe(stats.batch_size)
        for phase, series in self._step.items():
            # An engine that does not measure a phase reports 0.
            if seconds := getattr(stats.step_times, phase):
                series.observe(seconds)

    def observe_stats(self, stats: SchedulerStats) -> None:
        """Add what the engine's totals have grown by."""
        before, self._stats = self._stats, stats
        # Most steps change none of them, and a comparison is cheaper than `inc`.
        if preempted := stats.preemptions - before.preemptions:
            self._preemptions.inc(preempted)
        if asked := stats.prefix_query_tokens - before.prefix_query_tokens:
            self._prefix_query.inc(asked)
        if hit := stats.prefix_hit_tokens - before.prefix_hit_tokens:
            self._prefix_hit.inc(hit)
        if stats.second_tier != before.second_tier:
            self._observe_tier(stats.second_tier, before.second_tier)
        if drafted := stats.drafted_tokens - before.drafted_tokens:
            self._drafted.inc(drafted)
        if accepted := stats.accepted_tokens - before.accepted_tokens:
            self._accepted.inc(accepted)

    def _observe_tier(self, tier: SecondTierStats, before: SecondTierStats) -> None:
        self._tier_query.inc(tier.query_tokens - before.query_tokens)
        self._tier_hit.inc(tier.hit_tokens - before.hit_tokens)
        self._tier_written.inc(tier.written_bytes - before.written_bytes)
        for event, counter in self._tier_events.items():
            counter.inc(getattr(tier, event) - getattr(before, event))

    # Jobs

    def observe_take(self, job: HeldJob) -> None:
        self._prompt_tokens.inc(job.prompt_tokens)
        if not job.resumed:
            self._queue_wait.observe(job.taken_at - job.enqueued_at)
        if (placed := job.placed) is None:
            return
        if placed.whose in self._placed:
            self._placed[placed.whose].inc()
        if placed.whose == "own":
            self._placed_tokens.inc(placed.tokens)
        if placed.waited_s:
            self._placement_wait.observe(placed.waited_s)

    def observe_tokens(self, job: HeldJob, count: int, now: float) -> None:
        """These tokens became visible now, together. Each counts with its share of the time since
        the last ones."""
        if job.last_token_at is not None:
            self._inter_token.observe((now - job.last_token_at) / count, count)
        else:
            self._inter_token.observe(0.0, count - 1)
            if job.first_index == 0:
                self._ttft.observe(now - job.enqueued_at)
        job.last_token_at = now

    def observe_end(self, job: HeldJob, event: Event, now: float) -> None:
        self._jobs[event.type].inc()
        if isinstance(event, FinishedEvent):
            self._reasons[event.reason].inc()
            if event.numbers is not None:
                self._encoded.inc(event.numbers.row_count)
        self._duration.observe(now - job.enqueued_at)

    def dead_letter(self, reason: str) -> None:
        """`reason`: the code of the error."""
        self._jobs["dead_letter"].inc()
        self._dead_letters.labels(self._model, reason).inc()
        if reason != _CRASH_LOOP:
            self._invalid.inc()

    # The queue

    def observe_queue(
        self,
        status: QueueStatus,
        tenants: TenantsStatus,
        oldest_waiting_ms: int | None,
        lost_workers: int = 0,
    ) -> None:
        """Set the gauges of the queue. `oldest_waiting_ms`: when that job was enqueued."""
        self._tenants.observe(status, tenants)
        values = {
            "queue_lag_jobs": sum(status.waiting.values()),
            "queue_pending_jobs": status.running,
            "queue_oldest_pending_age_seconds": status.age_s(status.oldest_running_ms) or 0.0,
            "queue_oldest_waiting_age_seconds": status.age_s(oldest_waiting_ms) or 0.0,
            "queue_tokens": status.queued_tokens,
            "queue_lost_workers": lost_workers,
            "dead_letter_jobs": status.dead_letters,
        }
        for name, gauge in self._queue.items():
            gauge.labels(self._model, status.queue).set(values[name])

    def forget_queue(self) -> None:
        """Stop exporting the gauges of the queue: another worker reads it, or nobody can."""
        for gauge in self._queue.values():
            gauge.clear()
        self._tenants.forget()

    # Families, bound to this worker's model

    def _gauge(self, name: str, help_text: str) -> Gauge:
        gauge = Gauge(f"rose_{name}", help_text, ["model"], registry=self.registry)
        return gauge.labels(self._model)

    def _counter(self, name: str, help_text: str) -> Counter:
        family = Counter(f"rose_{name}", help_text, ["model"], registry=self.registry)
        return family.labels(self._model)

    def _counters(
        self, name: str, help_text: str, label: str, values: Sequence[str]
    ) -> dict[str, Counter]:
        """The counters of a family by the value of one more label."""
        family = Counter(f"rose_{name}", help_text, ["model", label], registry=self.registry)
        return {value: family.labels(self._model, value) for value in values}

    def _histogram(self, name: str, help_text: str, buckets: Sequence[float]) -> Series:
        family = Histogram(f"rose_{name}", help_text, buckets, ["model"], [(self._model,)])
        self.registry.register(family)
        return family.series(self._model)
