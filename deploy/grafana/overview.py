"""The overview: is it well, and since when not."""

from deploy.grafana.panels import Dashboard, Panel, Query, Row, stat
from deploy.grafana.tenants import TENANTS
from deploy.grafana.worker_queries import (
    MODELS,
    heat_map_of,
    occupancy,
    quantiles_of,
    queue_gauge,
    rate_of,
)

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
            f"sum(rose_ready{MODELS}) or vector(0)",
            steps={0: "red", 1: "green"},
        ),
        stat(
            "Jobs waiting",
            "Jobs that no worker has read yet, over all queues.",
            f"sum({queue_gauge('rose_queue_lag_jobs')})",
        ),
        stat(
            "Oldest waiting",
            "For how long the oldest of them has waited. An alert fires at 5 minutes.",
            f"max({queue_gauge('rose_queue_oldest_waiting_age_seconds')})",
            "s",
            {0: "green", 60: "yellow", 300: "red"},
        ),
        stat(
            "Tokens per second",
            "Tokens generated and logged, over all workers.",
            f"sum(rate(rose_generated_tokens_total{MODELS}[$__rate_interval]))",
        ),
        stat(
            "Batch occupancy",
            "Share of the slots of all workers that are in use. At 100% jobs wait.",
            occupancy(""),
            "percentunit",
        ),
        stat(
            "First token too late",
            "Share of the last hour's jobs that waited for more than 2.5 s for their first "
            "token. The objective allows 5%.",
            f"max(rose:time_to_first_token_slow:ratio_rate1h{MODELS})",
            "percentunit",
            {0: "green", 0.05: "yellow", 0.3: "red"},
        ),
        stat(
            "Dead letters",
            "Jobs that were given up and are kept: `rose dead-letters list` shows them.",
            f"sum({queue_gauge('rose_dead_letter_jobs')})",
            steps={0: "green", 1: "yellow"},
        ),
    ),
    Row(
        "Work",
        Panel(
            "Tokens per second",
            "Generated: computed, logged and published. Prompt: of the jobs begun on, "
            "those that go on after a takeover included. Texts: embedded or scored.",
            [
                Query(rate_of("rose_generated_tokens_total", "model"), "{{model}} generated"),
                Query(rate_of("rose_prompt_tokens_total", "model"), "{{model}} prompt"),
                Query(rate_of("rose_encoded_inputs_total", "model"), "{{model}} texts"),
            ],
        ),
        Panel(
            "Batch occupancy",
            "Share of the slots in use, by worker and of all. Jobs wait while slots are "
            "free: intake does not keep up, or Redis is slow.",
            [
                Query(occupancy(" by (model)"), "{{model}}"),
                Query(occupancy(" by (instance)"), "{{instance}}"),
            ],
            "percentunit",
            max=1,
        ),
        Panel(
            "Outcomes",
            "Jobs ended per second, by outcome. Jobs cancelled before a worker took them "
            "are not among them.",
            [Query(rate_of("rose_jobs_total", "outcome"), "{{outcome}}")],
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
                Query(queue_gauge("rose_queue_lag_jobs"), "{{queue}} waiting"),
                Query(queue_gauge("rose_queue_pending_jobs"), "{{queue}} held"),
            ],
        ),
        Panel(
            "Oldest job",
            "Since the oldest waiting and the oldest held job were enqueued.",
            [
                Query(queue_gauge("rose_queue_oldest_waiting_age_seconds"), "{{queue}} waiting"),
                Query(queue_gauge("rose_queue_oldest_pending_age_seconds"), "{{queue}} held"),
            ],
            "s",
        ),
        Panel(
            "Queue wait",
            "From enqueue until a worker took the job, of those taken now.",
            quantiles_of("rose_queue_wait_seconds"),
            "s",
        ),
        Panel(
            "Tokens in the queue",
            "Estimated tokens, prompts and answers, of all jobs that have not ended: what "
            "`ROSE_MAX_QUEUED_TOKENS` limits.",
            [Query(queue_gauge("rose_queue_tokens"), "{{queue}}")],
        ),
        Panel(
            "Job duration",
            "From enqueue to the terminal event.",
            quantiles_of("rose_job_duration_seconds"),
            "s",
        ),
        Panel(
            "Finish reasons",
            "Jobs finished per second: the model was done (eos), met a stop string (stop), "
            "or ran out of its limit (length).",
            [Query(rate_of("rose_finish_reasons_total", "reason"), "{{reason}}")],
            stacked=True,
        ),
    ),
    TENANTS,
    Row(
        "Latency",
        Panel(
            "Time to first token",
            "From enqueue until the first token is in the log, where subscribers see it.",
            heat_map_of("rose_time_to_first_token_seconds"),
            "s",
            kind="heatmap",
        ),
        Panel(
            "Time to first token, quantiles",
            "The objective: 95% within 2.5 s.",
            quantiles_of("rose_time_to_first_token_seconds"),
            "s",
        ),
        Panel(
            "First tokens too late",
            "Share of jobs whose first token took more than 2.5 s, over four windows. "
            "Alerts fire at 72% (5 minutes and 1 hour) and 30% (30 minutes and 6 hours).",
            [
                Query(f"rose:time_to_first_token_slow:ratio_rate{window}{MODELS}", window)
                for window in ("5m", "30m", "1h", "6h")
            ],
            "percentunit",
        ),
        Panel(
            "Inter-token latency",
            "Between two tokens of a job, as they reach the log.",
            heat_map_of("rose_inter_token_latency_seconds"),
            "s",
            kind="heatmap",
            width=12,
        ),
        Panel(
            "Inter-token latency, quantiles",
            "What a reader sees as the pace of the text.",
            quantiles_of("rose_inter_token_latency_seconds"),
            "s",
            width=12,
        ),
    ),
)
