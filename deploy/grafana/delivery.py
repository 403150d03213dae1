"""What the delivery protocol had to make good, and what it gave up."""

from deploy.grafana.panels import Dashboard, Panel, Query, Row
from deploy.grafana.worker_queries import MODELS, queue_gauge, rate_of

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
            [Query(rate_of("rose_jobs_redelivered_total", "instance"), "{{instance}}")],
        ),
        Panel(
            "Lost leases, fenced appends",
            "Per second: leases that another worker had taken when they were renewed, and "
            "appends that Redis refused, because somebody else had the job by then. Each is work "
            "done twice, and none reaches a subscriber.",
            [
                Query(rate_of("rose_fenced_appends_total", "instance"), "appends {{instance}}"),
                Query(rate_of("rose_leases_lost_total", "instance"), "leases {{instance}}"),
            ],
        ),
        Panel(
            "Redis errors",
            "Failed calls per second: of intake, publisher, lease renewal, the control "
            "channel, and the look that readiness takes. All are repeated.",
            [Query(rate_of("rose_redis_errors_total", "op"), "{{op}}")],
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
                    "sum by (reason) "
                    f"(increase(rose_dead_letters_total{MODELS}[$__rate_interval]))",
                    "{{reason}}",
                )
            ],
            stacked=True,
        ),
        Panel(
            "Dead letters kept",
            "`rose dead-letters` lists, retries and purges them.",
            [Query(queue_gauge("rose_dead_letter_jobs"), "{{queue}}")],
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
                Query(rate_of("rose_invalid_messages_total", "model"), "invalid"),
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
            [Query(f"rose_ready{MODELS}", "{{instance}}")],
            max=1,
        ),
        Panel(
            "Reads the queue",
            "Which worker exports the gauges of the queue: one, and another within 20 "
            "seconds of its death.",
            [Query(f"count by (instance, queue) (rose_queue_lag_jobs{MODELS})", "{{instance}}")],
            max=1,
        ),
    ),
)
