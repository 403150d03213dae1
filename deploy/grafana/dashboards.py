"""The dashboards: overview, engine and delivery; that of the gateway is in gateway.py.

The gauges of the queue are exported by one worker at a time, hence `max by`: during a change of
that worker there may be two of them, or none.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.grafana.gateway import GATEWAY
from deploy.grafana.panels import Dashboard, Panel, Query, Row, stat
from deploy.grafana.promql import heat_map, quantiles, rate
from deploy.grafana.tenants import TENANTS

_M = '{model=~"$model"}'
_HITS = "rose_prefix_cache_hit_tokens_total"
_ACCEPTED = "rose_accepted_tokens_total"
_QUERIES = "rose_prefix_cache_query_tokens_total"


def _rate(metric: str, by: str) -> str:
    return rate(metric, by, _M)


def _queue(metric: str) -> str:
    return f"max by (model, queue) ({metric}{_M})"


def _quantiles(
    metric: str, by: str = "model", asked: Sequence[float] = (0.5, 0.95, 0.99)
) -> list[Query]:
    return quantiles(metric, by, _M, asked)


def _heat_map(metric: str, model: str = _M) -> list[Query]:
    return heat_map(metric, model)


def _share(part: str, whole: str, by: str) -> str:
    return f"{_rate(part, by)} / {_rate(whole, by)}"


def _mean(metric: str, by: str) -> str:
    return _share(f"{metric}_sum", f"{metric}_count", by)


def _occupancy(by: str) -> str:
    used, slots = f"rose_batch_sequences{_M}", f"rose_batch_capacity_sequences{_M}"
    return f"sum{by} ({used}) / sum{by} ({slots})"


OVERVIEW = Dashboard(
    "overview",
    "roseinfer / Overview",
    "Is it well? The first line says so; the rest says since when, and where it is not.",
    Row(
        "Is it well?",
        stat(
            "Alerts firing",
            "Alerts of roseinfer that fire now; Prometheus lists them under Alerts.",
            'count(ALERTS{alertname=~"Rose.*", alertstate="firing"}) or vector(0)',
            steps={0: "green", 1: "red"},
        ),
        stat(
            "Workers ready",
            "Workers that have their model loaded and reach Redis.",
            f"sum(rose_ready{_M}) or vector(0)",
            steps={0: "red", 1: "green"},
        ),
        stat(
            "Jobs waiting",
            "Jobs that no worker has read yet, over all queues.",
            f"sum({_queue('rose_queue_lag_jobs')})",
        ),
        stat(
            "Oldest waiting",
            "For how long the oldest of them has waited. An alert fires at 5 minutes.",
            f"max({_queue('rose_queue_oldest_waiting_age_seconds')})",
            "s",
            {0: "green", 60: "yellow", 300: "red"},
        ),
        stat(
            "Tokens per second",
            "Tokens generated and logged, over all workers.",
            f"sum(rate(rose_generated_tokens_total{_M}[$__rate_interval]))",
        ),
        stat(
            "Batch occupancy",
            "Share of the slots of all workers that are in use. At 100% jobs wait.",
            _occupancy(""),
            "percentunit",
        ),
        stat(
            "First token too late",
            "Share of the last hour's jobs that waited for more than 2.5 s for their first "
            "token. The objective allows 5%.",
            f"max(rose:time_to_first_token_slow:ratio_rate1h{_M})",
            "percentunit",
            {0: "green", 0.05: "yellow", 0.3: "red"},
        ),
        stat(
            "Dead letters",
            "Jobs that were given up and are kept: `rose dead-letters list` shows them.",
            f"sum({_queue('rose_dead_letter_jobs')})",
            steps={0: "green", 1: "yellow"},
        ),
    ),
    Row(
        "Work",
        Panel(
            "Tokens per second",
            "Generated: computed, logged and published. Prompt: of the jobs begun on, "
            "those that go on after a takeover included.",
            [
                Query(_rate("rose_generated_tokens_total", "model"), "{{model}} generated"),
                Query(_rate("rose_prompt_tokens_total", "model"), "{{model}} prompt"),
            ],
        ),
        Panel(
            "Batch occupancy",
            "Share of the slots in use, by worker and of all. Jobs wait while slots are "
            "free: intake does not keep up, or Redis is slow.",
            [
                Query(_occupancy(" by (model)"), "{{model}}"),
                Query(_occupancy(" by (instance)"), "{{instance}}"),
            ],
            "percentunit",
            max=1,
        ),
        Panel(
            "Outcomes",
            "Jobs ended per second, by outcome. Jobs cancelled before a worker took them "
            "are not among them.",
            [Query(_rate("rose_jobs_total", "outcome"), "{{outcome}}")],
            stacked=True,
        ),
    ),
    Row(
        "Queue",
        Panel(
            "Jobs in the queue",
            "Waiting: no worker has read them. Held: by workers, or by those that died "
            "until their leases lapse.",
            [
                Query(_queue("rose_queue_lag_jobs"), "{{queue}} waiting"),
                Query(_queue("rose_queue_pending_jobs"), "{{queue}} held"),
            ],
        ),
        Panel(
            "Oldest job",
            "Since the oldest waiting and the oldest held job were enqueued.",
            [
                Query(_queue("rose_queue_oldest_waiting_age_seconds"), "{{queue}} waiting"),
                Query(_queue("rose_queue_oldest_pending_age_seconds"), "{{queue}} held"),
            ],
            "s",
        ),
        Panel(
            "Queue wait",
            "From enqueue until a worker took the job, of those taken now.",
            _quantiles("rose_queue_wait_seconds"),
            "s",
        ),
        Panel(
            "Tokens in the queue",
            "Estimated tokens, prompts and answers, of all jobs that have not ended: what "
            "`ROSE_MAX_QUEUED_TOKENS` limits.",
            [Query(_queue("rose_queue_tokens"), "{{queue}}")],
        ),
        Panel(
            "Job duration",
            "From enqueue to the terminal event.",
            _quantiles("rose_job_duration_seconds"),
            "s",
        ),
        Panel(
            "Finish reasons",
            "Jobs finished per second: the model was done (eos), met a stop string (stop), "
            "or ran out of its limit (length).",
            [Query(_rate("rose_finish_reasons_total", "reason"), "{{reason}}")],
            stacked=True,
        ),
    ),
    TENANTS,
    Row(
        "Latency",
        Panel(
            "Time to first token",
            "From enqueue until the first token is in the log, where subscribers see it.",
            _heat_map("rose_time_to_first_token_seconds"),
            "s",
            kind="heatmap",
        ),
        Panel(
            "Time to first token, quantiles",
            "The objective: 95% within 2.5 s.",
            _quantiles("rose_time_to_first_token_seconds"),
            "s",
        ),
        Panel(
            "First tokens too late",
            "Share of jobs whose first token took more than 2.5 s, over four windows. "
            "Alerts fire at 72% (5 minutes and 1 hour) and 30% (30 minutes and 6 hours).",
            [
                Query(f"rose:time_to_first_token_slow:ratio_rate{window}{_M}", window)
                for window in ("5m", "30m", "1h", "6h")
            ],
            "percentunit",
        ),
        Panel(
            "Inter-token latency",
            "Between two tokens of a job, as they reach the log.",
            _heat_map("rose_inter_token_latency_seconds"),
            "s",
            kind="heatmap",
            width=12,
        ),
        Panel(
            "Inter-token latency, quantiles",
            "What a reader sees as the pace of the text.",
            _quantiles("rose_inter_token_latency_seconds"),
            "s",
            width=12,
        ),
    ),
)

ENGINE = Dashboard(
    "engine",
    "roseinfer / Engine",
    "Where a step's time and the KV cache go.",
    Row(
        "Steps",
        Panel(
            "Time of a step by phase",
            "Mean seconds of each phase. On CUDA the forward pass is asynchronous: what of "
            "it still runs when the sampler asks counts as sample.",
            [Query(_mean("rose_step_duration_seconds", "phase"), "{{phase}}")],
            "s",
            stacked=True,
        ),
        Panel(
            "Slow steps",
            "99th percentile of each phase: prefill of long prompts shows in forward.",
            _quantiles("rose_step_duration_seconds", "phase", [0.99]),
            "s",
        ),
        Panel(
            "Forward pass",
            "How long it took, step by step.",
            _heat_map("rose_step_duration_seconds", '{model=~"$model", phase="forward"}'),
            "s",
            kind="heatmap",
        ),
        Panel(
            "Steps per second",
            "By worker. 0 with jobs in the batch: the device hangs, or decoding pauses "
            "because Redis is away.",
            [Query(_rate("rose_batch_size_sequences_count", "instance"), "{{instance}}")],
        ),
        Panel(
            "Requests in a step",
            "Mean number of requests computed together, by worker.",
            [Query(_mean("rose_batch_size_sequences", "instance"), "{{instance}}")],
        ),
        Panel(
            "Batch size",
            "Requests computed in a step, step by step.",
            _heat_map("rose_batch_size_sequences"),
            kind="heatmap",
        ),
    ),
    Row(
        "KV cache",
        Panel(
            "KV cache in use",
            "Share of the blocks that requests hold, by worker. Full is no error: the "
            "youngest requests give way.",
            [Query(f"rose_kv_cache_usage_ratio{_M}", "{{instance}}")],
            "percentunit",
            max=1,
        ),
        Panel(
            "Prefix cache hits",
            "Share of prompt tokens whose keys and values were there already.",
            [Query(_share(_HITS, _QUERIES, "model"), "{{model}}")],
            "percentunit",
            max=1,
        ),
        Panel(
            "Preemptions",
            "Requests per second that gave up their blocks and are computed again. Few are "
            "harmless; many mean that the cache is too small for the slots.",
            [Query(_rate("rose_preemptions_total", "instance"), "{{instance}}")],
        ),
    ),
    Row(
        "Speculation",
        Panel(
            "Tokens from drafts",
            "Share of generated tokens that were guessed and then verified, beside others, in a "
            "step: 0 where nothing repeats or the batch keeps the processor busy.",
            [Query(_share(_ACCEPTED, "rose_generated_tokens_total", "model"), "{{model}}")],
            "percentunit",
            width=12,
            max=1,
        ),
        Panel(
            "Drafts that were right",
            "Share of the guessed tokens that were right.",
            [Query(_share(_ACCEPTED, "rose_drafted_tokens_total", "model"), "{{model}}")],
            "percentunit",
            width=12,
            max=1,
        ),
    ),
    Row(
        "What runs",
        Panel(
            "Models",
            "What each worker serves, on which device, in which data type.",
            [Query(f"rose_model_info{_M}")],
            kind="table",
            width=16,
        ),
        Panel(
            "Versions",
            "Of roseinfer, by worker.",
            [Query("rose_build_info")],
            kind="table",
        ),
    ),
)

DELIVERY = Dashboard(
    "delivery",
    "roseinfer / Delivery",
    "Does every token arrive? What the delivery protocol had to make good, and what it gave up.",
    Row(
        "Made good",
        Panel(
            "Redeliveries",
            "Jobs per second that a worker took over, because their lease had lapsed or "
            "they were handed back at a drain. Subscribers see a pause.",
            [Query(_rate("rose_jobs_redelivered_total", "instance"), "{{instance}}")],
        ),
        Panel(
            "Fenced appends",
            "Appends per second that Redis refused, because somebody else had the job by "
            "then. Each is work done twice, and none reaches a subscriber.",
            [Query(_rate("rose_fenced_appends_total", "instance"), "{{instance}}")],
        ),
        Panel(
            "Redis errors",
            "Failed calls per second: of intake, publisher, lease renewal, the control "
            "channel, and the look that readiness takes. All are repeated.",
            [Query(_rate("rose_redis_errors_total", "op"), "{{op}}")],
            stacked=True,
        ),
    ),
    Row(
        "Given up",
        Panel(
            "Dead letters by reason",
            "Jobs given up in each interval. crash_loop: workers died on it without a new "
            "token; the others could not begin.",
            [
                Query(
                    f"sum by (reason) (increase(rose_dead_letters_total{_M}[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
            stacked=True,
        ),
        Panel(
            "Dead letters kept",
            "`rose dead-letters` lists, retries and purges them.",
            [Query(_queue("rose_dead_letter_jobs"), "{{queue}}")],
        ),
        Panel(
            "Not finished",
            "Jobs per second that ended in another way than finished, and messages that "
            "could not become jobs.",
            [
                Query(
                    'sum by (outcome) (rate(rose_jobs_total{model=~"$model", '
                    'outcome!="finished"}[$__rate_interval]))',
                    "{{outcome}}",
                ),
                Query(_rate("rose_invalid_messages_total", "model"), "invalid"),
            ],
        ),
    ),
    Row(
        "Workers",
        Panel(
            "Up",
            "1 while the worker answers Prometheus.",
            [Query('up{job="rose-worker"}', "{{instance}}")],
            max=1,
        ),
        Panel(
            "Ready",
            "1 while the worker reaches Redis; /readyz says why not.",
            [Query(f"rose_ready{_M}", "{{instance}}")],
            max=1,
        ),
        Panel(
            "Reads the queue",
            "Which worker exports the gauges of the queue: one, and another within 20 "
            "seconds of its death.",
            [Query(f"count by (instance, queue) (rose_queue_lag_jobs{_M})", "{{instance}}")],
            max=1,
        ),
    ),
)

DASHBOARDS = (OVERVIEW, ENGINE, DELIVERY, GATEWAY)
