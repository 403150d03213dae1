"""The row of tenants on the overview. One worker at a time exports their gauges, hence `max by`."""

from deploy.grafana.panels import Panel, Query, Row
from deploy.grafana.worker_queries import MODELS, rate_of

_BY = "queue, tenant"


def _gauge(metric: str) -> Query:
    return Query(f"max by ({_BY}) ({metric}{MODELS})", "{{tenant}}")


TENANTS = Row(
    "Tenants",
    Panel(
        "Tokens per second by tenant",
        "Of jobs that have ended, of the tenants with the most jobs. While several wait, each has "
        "its weight's share, unless a limit of its own holds it back.",
        [Query(rate_of("rose_tenant_served_tokens_total", _BY), "{{tenant}}")],
        stacked=True,
    ),
    Panel(
        "Waiting by tenant",
        "(rest): all other tenants, and the jobs without one.",
        [_gauge("rose_tenant_waiting_jobs")],
        stacked=True,
    ),
    Panel(
        "Running by tenant",
        "Jobs that workers hold. (rest): all other tenants, and the jobs without one.",
        [_gauge("rose_tenant_running_jobs")],
        stacked=True,
    ),
    Panel(
        "Oldest job by tenant",
        "For how long each tenant's oldest waiting job has waited. An alert fires at 5 minutes "
        "where none of its jobs runs meanwhile.",
        [_gauge("rose_tenant_oldest_waiting_age_seconds")],
        "s",
    ),
    Panel(
        "Fairness",
        "Jain's index of the tokens per weight, of the tenants that wait: 1 is an even share, 1/n "
        "is one of n having all. A tenant at a limit of its own lowers it.",
        [Query("rose:tenant_fairness:jain_rate10m", "{{queue}}")],
        max=1,
    ),
    Panel(
        "Tenants",
        "How many tenants have jobs, and the estimated tokens that the largest have queued.",
        [
            Query(f"max by (queue) (rose_queue_tenants{MODELS})", "{{queue}} tenants"),
            _gauge("rose_tenant_queued_tokens"),
        ],
    ),
)
