"""What a worker can set, by flag or by environment (`ROSE_...`)."""

from typing import Any, Literal

from pydantic import Field

from rose.errors import ConfigurationError
from rose.formats.registry import HARMONY, REASONING_FORMATS, TOOL_FORMATS
from rose.settings import QueueSettings


class WorkerSettings(QueueSettings):
    engine: Literal["rose", "vllm", "null"] = Field(
        default="rose",
        description="rose; vllm, for models that need several devices; or null, which has no model "
        "and echoes the prompt's tokens",
    )
    model: str | None = Field(
        default=None,
        description="model folder, GGUF file or hub name; the built-in model if not given",
    )
    task: Literal["generate", "embed", "score"] | None = Field(
        default=None,
        description="what the model does: generate text, embed texts, or score pairs of texts; "
        "found out from its files if not given",
    )
    vllm_args: str = Field(
        default="",
        description="further arguments of vLLM, in the form of `vllm serve`, such as "
        '"--tensor-parallel-size 2"; "--help" lists them',
    )
    adapters: str = Field(
        default="",
        description="with vLLM, LoRA adapters that jobs may name: NAME=SOURCE, separated by "
        "commas; a source is a folder or a name on the hub",
    )
    tokenizer: str | None = Field(default=None, description="tokenizer; the model's if not given")
    tool_format: str | None = Field(
        default=None,
        description="how the model writes calls of functions, or none; found out from the chat "
        "template if not given. One of " + ", ".join(TOOL_FORMATS),
    )
    reasoning_format: str | None = Field(
        default=None,
        description="how the model writes thoughts, or none; found out from the chat template if "
        "not given. One of " + ", ".join((*REASONING_FORMATS, HARMONY)),
    )
    replace_model: bool = Field(
        default=False,
        description="join even if other workers of the queue serve another model; these then take "
        "no new jobs",
    )
    device: str | None = Field(default=None, description="cpu, cuda, cuda:1; the best if not given")
    dtype: str | None = Field(
        default=None, description="float32, bfloat16 or float16; what suits the device if not given"
    )
    weights: Literal["int8", "int4", "file"] | None = Field(
        default=None,
        description="int8 or int4: quantised at load to 8 or 4 bits in groups of 64; file: a "
        "quantised checkpoint's blocks as stored in its file; only with the compiled decoder on a "
        "CPU, the rest in bfloat16; the checkpoint's weights in `dtype` if not given",
    )
    torch_threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of the engine; if not given OMP_NUM_THREADS or one for each core, "
        "and no more than the cores that this process and its cgroup may use",
    )
    max_batch_size: int = Field(default=32, ge=1, description="requests decoded at once: slots")
    max_step_tokens: int = Field(
        default=1024, ge=1, description="tokens per step, prefill chunks included"
    )
    itl_target_ms: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="time between two tokens of a request while prompts of others are computed; "
        "2.25 decode steps of all requests if not given (on a GPU no target); 0 for no target",
    )
    speculation: bool = Field(
        default=False,
        description="speculative decoding: the same tokens, sooner if the text repeats, or if the "
        "checkpoint has a layer for further tokens; with the compiled decoder only",
    )
    max_context: int | None = Field(
        default=None, ge=2, description="context limit in tokens, below the model's own"
    )
    kv_cache_tokens: int | None = Field(
        default=None, ge=1, description="tokens the KV cache holds; from free memory if not given"
    )
    second_tier_bytes: int = Field(
        default=0,
        ge=0,
        description="bytes of disk in which prefixes outlive the KV cache and the worker, shared "
        "by the workers of a user on a machine; with a KV cache in main memory only; 0: off",
    )
    second_tier_folder: str | None = Field(
        default=None,
        description="folder of it, on a local disk and the user's alone; in the user's cache if "
        "not given",
    )
    second_tier_age_s: float = Field(
        default=86_400.0,
        gt=0,
        allow_inf_nan=False,
        description="what nobody has used for so long is removed from it",
    )
    attention: Literal["triton", "sdpa"] | None = Field(
        default=None,
        description="triton or sdpa; on a GPU triton if not given; on a CPU sdpa does not turn the "
        "compiled decoder off, ROSEINFER_NATIVE=0 does",
    )
    cuda_graphs: bool = Field(
        default=True, description="capture decode steps on a GPU at the start, and replay them"
    )
    gpu_memory_utilization: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="share of a GPU's memory to use, KV cache included",
    )
    lease_s: float = Field(
        default=10.0, ge=0.5, description="after this silence another worker takes a job over"
    )
    stall_timeout_s: float = Field(
        default=60.0, gt=0, description="a step longer than this counts as hung: leases lapse"
    )
    reclaim_interval_s: float = Field(
        default=1.0, gt=0, description="how often to look for jobs of lost or drained workers"
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        description="attempts without a new token before a job becomes a dead letter",
    )
    ageing_s: float = Field(
        default=60.0,
        ge=0,
        description="a waiting job gains a level of priority each time this passes",
    )
    placement_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="longest time for which a job waits for the worker that has the beginning of "
        "its prompt in its cache, beside idle ones; no longer than computing it takes; 0: off",
    )
    hand_backs: int = Field(
        default=0,
        ge=0,
        le=100,
        description="where all slots are taken: how often a running job may be handed back for one "
        "of a higher priority that waits; it goes on at its next token; 0: off",
    )
    dead_letters_kept: int = Field(default=10_000, ge=1, description="dead letters per partition")
    dead_letters_max_bytes: int = Field(
        default=2**28,
        ge=1,
        description="bytes of dead letters per partition; above it the oldest are deleted",
    )
    dead_letter_ttl_s: int = Field(
        default=7 * 86_400, ge=1, description="how long a dead letter is kept"
    )
    grace_s: float = Field(
        default=30.0,
        ge=0,
        description="at SIGTERM: time to finish jobs before the rest are handed back",
    )
    min_step_s: float = Field(
        default=0.0, ge=0, description="slow motion: a step takes at least this long"
    )
    max_buffered_steps: int = Field(
        default=1000,
        ge=1,
        description="steps buffered while Redis is unreachable before decoding pauses",
    )
    http_host: str = Field(
        default="127.0.0.1", description="address of /metrics, /healthz and /readyz"
    )
    http_port: int = Field(default=9400, ge=0, le=65535, description="its port; 0 for a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error; info has two lines a job"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="text, or json: a JSON object a line, with job and consumer"
    )
    tracing: bool = Field(
        default=False, description="send spans by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    name: str | None = Field(
        default=None, description="consumer name; must be unique; generated if not given"
    )


def chosen_formats(settings: WorkerSettings) -> dict[str, Any]:
    """The fields of a `ModelInfo` that are not found out. Raises: ConfigurationError"""
    known = {"tool_format": [*TOOL_FORMATS], "reasoning_format": [*REASONING_FORMATS, HARMONY]}
    chosen = {name: value for name in known if (value := getattr(settings, name)) is not None}
    for name, value in chosen.items():
        if value not in (*known[name], "none"):
            raise ConfigurationError(
                f"ROSE_{name.upper()}: {value!r} is no format: say one of "
                f"{', '.join(known[name])}, or none"
            )
    return {name: "" if value == "none" else value for name, value in chosen.items()}
