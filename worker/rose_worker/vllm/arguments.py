"""From the worker's settings to vLLM's configuration, which vLLM checks itself."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

from vllm.config import PoolerConfig
from vllm.config.lora import MaxLoRARanks
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from rose.errors import ConfigurationError
from rose_worker.settings import WorkerSettings
from rose_worker.vllm.adapters import Adapter
from roseinfer.checkpoints.sources import gguf_file, resolve
from roseinfer.demo_model import MODEL_PATH

#: Arguments of vLLM that the worker has a setting for.
_OWN = {
    "model": "ROSE_MODEL",
    "tokenizer": "ROSE_TOKENIZER",
    "dtype": "ROSE_DTYPE",
    "max_model_len": "ROSE_MAX_CONTEXT",
    "max_num_seqs": "ROSE_MAX_BATCH_SIZE",
    "max_num_batched_tokens": "ROSE_MAX_STEP_TOKENS",
    "enable_lora": "ROSE_ADAPTERS",
    "gpu_memory_utilization": "ROSE_GPU_MEMORY_UTILIZATION",
    "enforce_eager": "ROSE_CUDA_GRAPHS",
    "runner": "ROSE_TASK",
    "convert": "ROSE_TASK",
}

#: Arguments of vLLM that would break what the worker promises, and why.
_IMPOSSIBLE = {
    "logits_processors": "the worker samples by its own",
    "logprobs_mode": "log-probabilities are those of the model's own logits",
    "speculative_config": "a drafted token does not pass the worker's sampling",
    "async_scheduling": "the next token may depend on the last one",
    "trust_remote_code": "no code of a model is run",
    "skip_tokenizer_init": "the worker has its own tokenizer",
    "data_parallel_size": "start more workers instead: the queue shares the jobs out",
    "pooler_config": "the model's files say how it pools",
}

#: Formats that are, or may be, pickles.
_PICKLES = ("pt", "npcache", "auto")

#: Settings of the worker that only its own engine has.
_OTHERS = (
    "weights",
    "device",
    "torch_threads",
    "attention",
    "itl_target_ms",
    "kv_cache_tokens",
    "second_tier_bytes",
)

LOGITS_PROCESSOR = "rose_worker.vllm.sampling:Sampling"
POOLED_STATES = "rose_worker.vllm.pooled_states.Extension"


@dataclass(frozen=True, slots=True)
class Pooling:
    """Of a model that embeds or scores."""

    transformer: Path
    max_tokens: int
    kind: str | None
    """vLLM's name of its pooling; None: it scores, and has its own"""


def engine_config(settings: WorkerSettings, adapters: Mapping[str, Adapter]) -> Any:
    """A `VllmConfig` for `settings` and these adapters.

    Raises: ConfigurationError: a setting is not possible, or vLLM refuses the configuration.
    """
    parser, parsed = _parsed(settings)
    parsed.logits_processors = [LOGITS_PROCESSOR]
    if adapters:
        _set_adapters(parser, parsed, adapters)
    return _vllm_config(parsed)


def pooling_config(settings: WorkerSettings, pooling: Pooling) -> Any:
    """A `VllmConfig` for a model that embeds or scores. Raises: ConfigurationError"""
    if settings.adapters:
        raise ConfigurationError("ROSE_ADAPTERS is for models that generate: leave it out")
    _, parsed = _parsed(settings)
    parsed.runner = "pooling"
    parsed.model = parsed.tokenizer = str(pooling.transformer)
    parsed.max_model_len = pooling.max_tokens
    parsed.enable_prefix_caching = False  # texts of tenants must not meet
    parsed.worker_extension_cls = POOLED_STATES
    if pooling.kind is not None:
        parsed.convert = "embed"
        parsed.pooler_config = PoolerConfig(seq_pooling_type=pooling.kind)
    return _vllm_config(parsed)


def _parsed(settings: WorkerSettings) -> tuple[Any, Any]:
    """vLLM's parser, and its arguments with those that the worker has settings for."""
    _check_settings(settings)
    parser = EngineArgs.add_cli_args(_Parser(prog="ROSE_VLLM_ARGS"))
    parsed = parser.parse_args(_words(settings.vllm_args))
    _refuse_own(parser, parsed)
    _set_own(parsed, settings)
    return parser, parsed


def _vllm_config(parsed: Any) -> Any:
    """Raises: ConfigurationError"""
    try:
        args = EngineArgs.from_cli_args(parsed)
        # Limits of a step as `vllm serve` chooses them for the device.
        return args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as error:
        raise ConfigurationError(
            f"vLLM refuses this configuration: {_in_one_line(error)}"
        ) from error


def _check_settings(settings: WorkerSettings) -> None:
    for name in _OTHERS:
        if getattr(settings, name) != WorkerSettings.model_fields[name].default:
            raise ConfigurationError(
                f"ROSE_{name.upper()} is not for the engine vllm: leave it out, and see "
                "ROSE_VLLM_ARGS=--help"
            )
    if settings.model is not None and gguf_file(resolve(settings.model)) is not None:
        raise ConfigurationError(
            f"ROSE_MODEL={settings.model} is a GGUF file: the engine rose reads it, the engine "
            "vllm wants safetensors"
        )


def _set_own(parsed: Any, settings: WorkerSettings) -> None:
    parsed.model = resolve(settings.model or str(MODEL_PATH))
    parsed.tokenizer = resolve(settings.tokenizer) if settings.tokenizer else None
    parsed.dtype = settings.dtype or ("float32" if current_platform.is_cpu() else "auto")
    parsed.max_model_len = settings.max_context
    parsed.max_num_seqs = settings.max_batch_size
    parsed.enforce_eager = not settings.cuda_graphs
    # The worker's defaults are for its own engine: vLLM knows better what suits it.
    if "max_step_tokens" in settings.model_fields_set:
        parsed.max_num_batched_tokens = settings.max_step_tokens
    if "gpu_memory_utilization" in settings.model_fields_set:
        parsed.gpu_memory_utilization = settings.gpu_memory_utilization
    if parsed.load_format == "auto":
        parsed.load_format = "safetensors"
    parsed.async_scheduling = False
    parsed.skip_tokenizer_init = True


def _set_adapters(parser: Any, parsed: Any, adapters: Mapping[str, Adapter]) -> None:
    """Room for all of them, as far as nothing else was asked for."""
    parsed.enable_lora = True
    largest = max(adapter.rank for adapter in adapters.values())
    ranks = [rank for rank in get_args(MaxLoRARanks) if rank >= largest]
    if not ranks:
        raise ConfigurationError(
            f"ROSE_ADAPTERS: an adapter has rank {largest}, vLLM takes up to "
            f"{max(get_args(MaxLoRARanks))}"
        )
    slots = len(adapters)
    if current_platform.is_cpu():
        # vLLM's kernels for CPUs give a request without an adapter the one in the last slot. It
        # must stay empty: then nothing is added.
        slots += 1
        if parsed.max_loras not in (parser.get_default("max_loras"), slots):
            raise ConfigurationError(f"ROSE_VLLM_ARGS: --max-loras must be {slots} on a CPU")
        parsed.max_loras = slots
    for name, value in (("max_lora_rank", ranks[0]), ("max_loras", slots)):
        if getattr(parsed, name) == parser.get_default(name):
            setattr(parsed, name, value)


class _Parser(FlexibleArgumentParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"ROSE_VLLM_ARGS: {message}")


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(f"ROSE_VLLM_ARGS: {error}") from None


def _refuse_own(parser: Any, parsed: Any) -> None:
    for name, setting in _OWN.items():
        if getattr(parsed, name) != parser.get_default(name):
            raise ConfigurationError(f"ROSE_VLLM_ARGS: {_flag(name)} is set by {setting}")
    for name, reason in _IMPOSSIBLE.items():
        if getattr(parsed, name) != parser.get_default(name):
            raise ConfigurationError(f"ROSE_VLLM_ARGS: {_flag(name)} is not possible: {reason}")
    if parsed.load_format in _PICKLES and parsed.load_format != parser.get_default("load_format"):
        raise ConfigurationError(
            f"ROSE_VLLM_ARGS: --load-format {parsed.load_format} may read pickles: use safetensors"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
