"""What the worker says of itself, event by event."""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from rose.engine_records import SchedulerStats, StepTimes
from rose.protocol import EntryKey, JobSpec, Partition
from rose.protocol.calls import Lease, Placed
from rose.protocol.status import QueueStatus
from rose.protocol.tenants import TenantLimits, TenantsStatus, TenantStatus
from rose_producer import FinishedEvent
from rose_worker.engine import ModelInfo
from rose_worker.jobs import HeldJob
from rose_worker.metrics import Metrics
from rose_worker.tenant_metrics import REST, TOP_TENANTS
from tests.support.metric_samples import rows_of_page, samples, value

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(ModelInfo("m", 100, 4, "cpu", "float32"), capacity=8)


def of(metrics: Metrics, name: str, **labels: str) -> float:
    return value(samples(generate_latest(metrics.registry).decode()), name, model="m", **labels)


def held(*, logged: int = 0, resumed: bool = False, enqueued_at: float = 0.0) -> HeldJob:
    lease = Lease(Partition("q"), EntryKey("s", "1-0"), "0-a", "a")
    spec = JobSpec(id="0-a", prompt="x")
    return HeldJob(spec, lease, logged, 1, enqueued_at, resumed, first_index=logged, taken_at=1.0)


@pytest.mark.parametrize("whose", ["own", "other"])
def test_a_placed_job_counts_by_whose_its_beginning_was(metrics: Metrics, whose: str) -> None:
    # given
    job = held()
    job.placed = Placed(whose, 300, 0.25)
    # when
    metrics.observe_take(job)
    # then
    assert of(metrics, "rose_placed_jobs_total", whose=whose) == 1
    assert of(metrics, "rose_placed_tokens_total") == (300 if whose == "own" else 0)
    assert of(metrics, "rose_placement_wait_seconds_sum") == 0.25


NO_TENANTS = TenantsStatus((), 0, 0, 0, 0)


def tenants_of(count: int) -> TenantsStatus:
    """t0 has as many waiting jobs as there are tenants, each next one a job less, and is the last
    to wait: t1 came a millisecond before it."""
    limits = TenantLimits(weight=2)
    rows = tuple(
        TenantStatus(f"t{n}", limits, count - n, 1, 50, 500, 7, 6000 - n, limited=False)
        for n in range(count)
    )
    return TenantsStatus(rows, count, sum(row.waiting for row in rows), count, now_ms=9000)


def test_every_series_is_there_before_its_first_event(metrics: Metrics) -> None:
    for name, label, values in (
        ("jobs", "outcome", ("finished", "failed", "cancelled", "dead_letter")),
        ("finish_reasons", "reason", ("eos", "stop", "length")),
        ("dead_letters", "reason", ("malformed_message", "prompt_too_long", "crash_loop")),
        ("redis_errors", "op", ("intake", "publish", "renew", "control", "watch")),
    ):
        for label_value in values:
            assert of(metrics, f"rose_{name}_total", **{label: label_value}) == 0
    assert of(metrics, "rose_step_duration_seconds_count", phase="forward") == 0


def test_no_job_adds_a_series(metrics: Metrics) -> None:
    # given
    (documented,) = re.findall(r"(\d+) for a worker that reads the queue", DOC.read_text())
    # when
    for number in range(100):
        spec = JobSpec(id=f"0-{number}", prompt=f"{number}")
        job = HeldJob(spec, held().lease, 0, 1, 0.0, resumed=False)
        metrics.observe_take(job)
        metrics.observe_tokens(job, number + 1, now=number + 2.0)
        metrics.observe_end(job, FinishedEvent(index=1, reason="length", prompt_tokens=1), number)
        totals = dict.fromkeys(("preemptions", "prefix_query_tokens", "prefix_hit_tokens"), number)
        metrics.observe_stats(SchedulerStats(running=number, batch_size=number, **totals))
        metrics.dead_letter("prompt_too_long")
        metrics.redis_errors["publish"].inc()
        workers = {f"w{n}": n for n in range(number)}
        status = QueueStatus("q", {"normal": number}, number, 0, 5, "m", 100, workers, None)
        metrics.observe_queue(status, NO_TENANTS, None)
    # then
    assert len(samples(generate_latest(metrics.registry).decode())) == int(documented)


def test_the_largest_tenants_and_the_oldest_have_series_and_the_others_one_together(
    metrics: Metrics,
) -> None:
    # given: beside 1,000 tenants, 5 waiting and 3 running jobs of nobody
    tenants = tenants_of(1000)
    waiting = {"high": 5, "normal": tenants.waiting}
    status = QueueStatus("q", waiting, tenants.running + 3, 0, 5, "m", 100, {}, None)
    # when
    metrics.observe_queue(status, tenants, None)
    # then
    page = samples(generate_latest(metrics.registry).decode())
    for name, whole in (
        ("rose_tenant_waiting_jobs", tenants.waiting + 5),
        ("rose_tenant_running_jobs", tenants.running + 3),
    ):
        shown = {dict(labels)["tenant"]: n for (one, labels), n in page.items() if one == name}
        largest, oldest = range(TOP_TENANTS), range(1000 - TOP_TENANTS, 1000)
        assert shown.keys() == {REST, *(f"t{n}" for n in (*largest, *oldest))}
        assert sum(shown.values()) == whole
    first = {"queue": "q", "tenant": "t0"}
    assert of(metrics, "rose_tenant_waiting_jobs", **first) == 1000
    assert of(metrics, "rose_tenant_oldest_waiting_age_seconds", **first) == 3
    assert of(metrics, "rose_tenant_weight", **first) == 2
    assert of(metrics, "rose_tenant_served_tokens_total", **first) == 7
    assert of(metrics, "rose_queue_tenants", queue="q") == 1000
    # when: another worker reads the queue
    metrics.forget_queue()
    # then
    assert "tenant=" not in generate_latest(metrics.registry).decode()


def test_a_first_token_counts_from_enqueue_whichever_worker_brings_it(metrics: Metrics) -> None:
    # given: one that nobody has begun on, and one whose first worker died before it had a token
    for job in (held(), held(resumed=True)):
        metrics.observe_take(job)
        # when
        metrics.observe_tokens(job, 1, now=3.0)
    # then: only the first one's wait was the queue's
    assert of(metrics, "rose_time_to_first_token_seconds_sum") == 6
    assert of(metrics, "rose_queue_wait_seconds_sum") == 1


def test_a_job_that_goes_on_has_no_first_token(metrics: Metrics) -> None:
    job = held(logged=5, resumed=True)
    # when: three tokens in one event
    metrics.observe_tokens(job, 1, now=3.0)
    metrics.observe_tokens(job, 3, now=3.6)
    # then
    assert of(metrics, "rose_time_to_first_token_seconds_count") == 0
    assert of(metrics, "rose_inter_token_latency_seconds_count") == 3
    assert of(metrics, "rose_inter_token_latency_seconds_sum") == pytest.approx(0.6)


def test_the_engines_own_totals_are_followed(metrics: Metrics) -> None:
    # when
    for total in (3, 3, 10):
        stats = SchedulerStats(
            kv_blocks_total=8,
            kv_blocks_used=2,
            preemptions=total,
            prefix_query_tokens=10 * total,
            prefix_hit_tokens=total,
            drafted_tokens=5 * total,
            accepted_tokens=2 * total,
            step_times=StepTimes(forward=0.5),
        )
        metrics.observe_stats(stats)
    metrics.observe_step(stats)
    # then
    assert of(metrics, "rose_preemptions_total") == 10
    assert of(metrics, "rose_prefix_cache_query_tokens_total") == 100
    assert of(metrics, "rose_prefix_cache_hit_tokens_total") == 10
    assert of(metrics, "rose_drafted_tokens_total") == 50
    assert of(metrics, "rose_accepted_tokens_total") == 20
    assert of(metrics, "rose_kv_cache_usage_ratio") == 0.25
    assert of(metrics, "rose_step_duration_seconds_sum", phase="forward") == 0.5


def test_a_crash_loop_is_no_invalid_message(metrics: Metrics) -> None:
    metrics.dead_letter("crash_loop")
    assert of(metrics, "rose_dead_letters_total", reason="crash_loop") == 1
    assert of(metrics, "rose_invalid_messages_total") == 0


def test_the_page_lists_every_metric(metrics: Metrics) -> None:
    # given: one that reads the queue too
    status = QueueStatus("q", {"normal": 1}, 1, 0, 5, "m", 100, {"w": 1}, None)
    metrics.observe_queue(status, tenants_of(1), None)
    # then
    listed = re.findall(r"^\| `rose_(?!gateway_).*$", DOC.read_text(), re.MULTILINE)
    assert listed == rows_of_page(metrics.registry, "model")
