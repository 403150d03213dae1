"""The gateway's dashboard. Its metrics know no model: a gateway serves many."""

from deploy.grafana.panels import Dashboard, Panel, Query, Row, stat
from deploy.grafana.promql import heat_map, quantiles, rate

GATEWAY = Dashboard(
    "gateway",
    "roseinfer / Gateway",
    "OpenAI's API over the queue: who asks, who listens, who is turned away.",
    Row(
        "Is it well?",
        stat(
            "Gateways up",
            "Gateways that answer Prometheus.",
            "rose:gateways_up:sum",
            steps={0: "red", 1: "green"},
        ),
        stat(
            "Open streams",
            "Event streams that are open now, over all gateways.",
            "sum(rose_gateway_open_streams) or vector(0)",
        ),
        stat(
            "Connections",
            "Open connections, over all gateways.",
            "sum(rose_gateway_open_connections) or vector(0)",
        ),
        stat("Requests", "Requests a second.", rate("rose_gateway_requests_total"), "reqps"),
        stat(
            "Errors",
            "Share of the last five minutes' requests that were answered with 500 or more. An "
            "alert fires at 5%.",
            "rose:gateway_errors:ratio_rate5m",
            "percentunit",
            {0: "green", 0.01: "yellow", 0.05: "red"},
        ),
        stat(
            "Added latency",
            "What the slowest gateway adds to half of its events. An alert fires at 50 ms.",
            "max(rose:gateway_added_latency_seconds:p50_rate5m)",
            "s",
            {0: "green", 0.01: "yellow", 0.05: "red"},
        ),
        stat(
            "Events",
            "Events of jobs passed on to clients, a second.",
            rate("rose_gateway_events_total"),
        ),
        stat(
            "Turned away",
            "Requests and connections a second that met a limit: of a key, of their size or time, "
            "or of the gateway.",
            rate("rose_gateway_limits_hit_total"),
            steps={0: "green", 1: "yellow"},
        ),
    ),
    Row(
        "Requests",
        Panel(
            "By status",
            "Requests a second, by the status of their answer. 499: the client went away.",
            [Query(rate("rose_gateway_requests_total", "status"), "{{status}}")],
            "reqps",
            stacked=True,
        ),
        Panel(
            "By route",
            "Requests a second, by method and route.",
            [Query(rate("rose_gateway_requests_total", "method, route"), "{{method}} {{route}}")],
            "reqps",
            stacked=True,
        ),
        Panel(
            "Time to the answer's headers",
            "From a request's first byte. A request that is not streamed waits for its whole text.",
            quantiles("rose_gateway_response_start_seconds"),
            "s",
        ),
    ),
    Row(
        "Streams",
        Panel(
            "Open streams",
            "By gateway; the autoscaler in deploy/kubernetes adds one at 400 each.",
            [Query("sum by (instance) (rose_gateway_open_streams)", "{{instance}}")],
        ),
        Panel(
            "Added latency",
            "From reading events from Redis to having written them to a client, each burst.",
            heat_map("rose_gateway_added_latency_seconds"),
            "s",
            kind="heatmap",
        ),
        Panel(
            "Added latency, quantiles",
            "A client that reads slowly makes its own events late, and shows in the highest.",
            quantiles("rose_gateway_added_latency_seconds"),
            "s",
        ),
        Panel(
            "Events",
            "Events of jobs passed on to clients, a second, by gateway.",
            [Query(rate("rose_gateway_events_total", "instance"), "{{instance}}")],
        ),
        Panel(
            "Bytes",
            "Bodies received and sent, a second.",
            [
                Query(rate("rose_gateway_received_bytes_total"), "received"),
                Query(rate("rose_gateway_sent_bytes_total"), "sent"),
            ],
            "Bps",
        ),
        Panel(
            "Open connections",
            "By gateway; `ROSE_GATEWAY_MAX_CONNECTIONS` is the most.",
            [Query("sum by (instance) (rose_gateway_open_connections)", "{{instance}}")],
        ),
    ),
    Row(
        "Batches",
        Panel(
            "Batches",
            "Those that have not ended, and how many of them each gateway runs: "
            "`ROSE_GATEWAY_MAX_BATCHES` at the most.",
            [
                Query("max(rose_gateway_unfinished_batches)", "not ended"),
                Query("sum by (instance) (rose_gateway_running_batches)", "{{instance}}"),
            ],
        ),
        Panel(
            "Lines",
            "Lines of batches that ended, a second. failed: those of the error files. An alert "
            "fires when none ends for half an hour although there are batches.",
            [Query(rate("rose_gateway_batch_lines_total", "outcome"), "{{outcome}}")],
            stacked=True,
            width=16,
        ),
    ),
    Row(
        "Webhooks",
        Panel(
            "Events",
            "Those that are to be delivered, and those that were given up: `rose webhooks dead` "
            "lists them.",
            [
                Query("max(rose_gateway_undelivered_webhooks)", "not delivered"),
                Query("max(rose_gateway_dead_webhooks)", "dead"),
            ],
        ),
        Panel(
            "Attempts",
            "To deliver an event, a second. failed: it is sent again; dead: it is not.",
            [Query(rate("rose_gateway_webhook_attempts_total", "outcome"), "{{outcome}}")],
            stacked=True,
            width=16,
        ),
    ),
    Row(
        "Limits",
        Panel(
            "Limits hit",
            "A second, by limit. requests, tokens, jobs: of a key. tenant: any limit of a tenant. "
            "body, header_time, body_time: "
            "of a request. bodies, downloads, connections: of the gateway.",
            [Query(rate("rose_gateway_limits_hit_total", "limit"), "{{limit}}")],
            stacked=True,
            width=16,
        ),
        Panel(
            "Versions",
            "Of roseinfer, by gateway.",
            [Query("rose_gateway_build_info")],
            kind="table",
        ),
    ),
)
