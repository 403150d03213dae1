"""Where a step's time and the KV cache go."""

from deploy.grafana.panels import Dashboard, Panel, Query, Row
from deploy.grafana.promql import rate
from deploy.grafana.worker_queries import MODELS, heat_map_of, mean, quantiles_of, rate_of, share

_HITS = "rose_prefix_cache_hit_tokens_total"
_QUERIES = "rose_prefix_cache_query_tokens_total"
_TIER_HITS = "rose_second_tier_hit_tokens_total"
_OWN = rate("rose_placed_jobs_total", "instance", '{model=~"$model", whose="own"}')
_OTHER = rate("rose_placed_jobs_total", "instance", '{model=~"$model", whose="other"}')
_HIT_RATE = rate_of(_HITS, "model")
_QUERY_RATE = rate_of(_QUERIES, "model")
_TIER_RATE = rate_of(_TIER_HITS, "model")
_TIER_BY_WORKER = rate_of(_TIER_HITS, "instance")
_ASKED_BY_WORKER = rate_of("rose_second_tier_query_tokens_total", "instance")
_ACCEPTED = "rose_accepted_tokens_total"

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
            [Query(mean("rose_step_duration_seconds", "phase"), "{{phase}}")],
            "s",
            stacked=True,
        ),
        Panel(
            "Slow steps",
            "99th percentile of each phase: prefill of long prompts shows in forward.",
            quantiles_of("rose_step_duration_seconds", "phase", [0.99]),
            "s",
        ),
        Panel(
            "Forward pass",
            "How long it took, step by step.",
            heat_map_of("rose_step_duration_seconds", '{model=~"$model", phase="forward"}'),
            "s",
            kind="heatmap",
        ),
        Panel(
            "Steps per second",
            "By worker. 0 with jobs in the batch: the device hangs, or decoding pauses "
            "because Redis is away.",
            [Query(rate_of("rose_batch_size_sequences_count", "instance"), "{{instance}}")],
        ),
        Panel(
            "Requests in a step",
            "Mean number of requests computed together, by worker.",
            [Query(mean("rose_batch_size_sequences", "instance"), "{{instance}}")],
        ),
        Panel(
            "Batch size",
            "Requests computed in a step, step by step.",
            heat_map_of("rose_batch_size_sequences"),
            kind="heatmap",
        ),
    ),
    Row(
        "KV cache",
        Panel(
            "KV cache in use",
            "Share of the blocks that requests hold, by worker. Full is no error: the "
            "youngest requests give way.",
            [Query(f"rose_kv_cache_usage_ratio{MODELS}", "{{instance}}")],
            "percentunit",
            max=1,
        ),
        Panel(
            "Prefix cache hits",
            "Share of prompt tokens whose keys and values were there already.",
            [Query(share(_HITS, _QUERIES, "model"), "{{model}}")],
            "percentunit",
            max=1,
        ),
        Panel(
            "Prefix cache hits by tier",
            "Prompt tokens per second found in the KV cache, found in the second tier "
            "(ROSE_SECOND_TIER_BYTES), and found in neither.",
            [
                Query(f"{_HIT_RATE} - {_TIER_RATE}", "{{model}}: KV cache"),
                Query(_TIER_RATE, "{{model}}: second tier"),
                Query(f"{_QUERY_RATE} - {_HIT_RATE}", "{{model}}: neither"),
            ],
            stacked=True,
        ),
        Panel(
            "Second tier hits and misses by worker",
            "Tokens per second that the KV cache lacked and the second tier had, or had not.",
            [
                Query(_TIER_BY_WORKER, "{{instance}}: hits"),
                Query(f"{_ASKED_BY_WORKER} - {_TIER_BY_WORKER}", "{{instance}}: misses"),
            ],
        ),
        Panel(
            "Second tier: bytes",
            "What the files hold. Workers of one user on a machine share them.",
            [Query(f"rose_second_tier_bytes{MODELS}", "{{instance}}")],
            "bytes",
        ),
        Panel(
            "Second tier: bytes written",
            "Per second, by worker: each block once, whoever computes it first.",
            [Query(rate_of("rose_second_tier_written_bytes_total", "instance"), "{{instance}}")],
            "Bps",
        ),
        Panel(
            "Second tier: blocks",
            "Per second: written; dropped, because the engine needed their memory before; "
            "evicted for others; damaged, and computed instead.",
            [Query(rate_of("rose_second_tier_blocks_total", "event"), "{{event}}")],
        ),
        Panel(
            "Preemptions",
            "Requests per second that gave up their blocks and are computed again. Few are "
            "harmless; many mean that the cache is too small for the slots.",
            [Query(rate_of("rose_preemptions_total", "instance"), "{{instance}}")],
        ),
    ),
    Row(
        "Placement",
        Panel(
            "Whose the beginning of a prompt was",
            "Jobs started per second with ROSE_PLACEMENT_S: own are hits, other are misses; the "
            "beginning of the rest was nobody's, or several workers'.",
            [Query(rate_of("rose_placed_jobs_total", "whose"), "{{whose}}")],
            stacked=True,
        ),
        Panel(
            "Hits and misses by worker",
            "Jobs started per second whose beginnings the worker had, and another one.",
            [Query(_OWN, "{{instance}}: hits"), Query(_OTHER, "{{instance}}: misses")],
        ),
        Panel(
            "Prompt tokens saved",
            "Estimated tokens per second that workers had of the jobs placed with them.",
            [Query(rate_of("rose_placed_tokens_total", "instance"), "{{instance}}")],
        ),
        Panel(
            "Waits for a worker",
            "Jobs per second that stood aside for the worker that has the beginning of their "
            "prompts, and seconds that they did.",
            [
                Query(rate_of("rose_placement_wait_seconds_count", "model"), "{{model}}: jobs"),
                Query(rate_of("rose_placement_wait_seconds_sum", "model"), "{{model}}: seconds"),
            ],
        ),
    ),
    Row(
        "Room for the urgent",
        Panel(
            "Jobs handed back",
            "Running jobs per second that made room for one of a higher priority, by worker "
            "(ROSE_HAND_BACKS).",
            [Query(rate_of("rose_jobs_handed_back_total", "instance"), "{{instance}}")],
            width=24,
        ),
    ),
    Row(
        "Speculation",
        Panel(
            "Tokens from drafts",
            "Share of generated tokens that were guessed and then verified, beside others, in a "
            "step: 0 where nothing repeats or the batch keeps the processor busy.",
            [Query(share(_ACCEPTED, "rose_generated_tokens_total", "model"), "{{model}}")],
            "percentunit",
            width=12,
            max=1,
        ),
        Panel(
            "Drafts that were right",
            "Share of the guessed tokens that were right.",
            [Query(share(_ACCEPTED, "rose_drafted_tokens_total", "model"), "{{model}}")],
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
            [Query(f"rose_model_info{MODELS}")],
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
