"""What the worker must know of a model that vLLM serves."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from transformers import GenerationConfig

from rose_worker.engine import ModelInfo
from rose_worker.preparation import Preparer
from rose_worker.rose_engine import formats_of
from rose_worker.settings import WorkerSettings
from rose_worker.vllm.adapters import Adapter, with_adapters
from roseinfer.checkpoints.fingerprint import fingerprint_of_files
from roseinfer.checkpoints.sources import model_name
from roseinfer.checkpoints.tokenizer import load_tokenizer
from roseinfer.model.limits import eos_token_ids
from roseinfer.sessions.factory import SessionFactory


def session_factory(config: Any) -> SessionFactory:
    """What makes sessions of the model in a `VllmConfig`.

    Raises: ModelNotFound, UnsupportedModel: it has no tokenizer that can be used.
    """
    model = config.model_config
    tokenizer = load_tokenizer(model.tokenizer)
    like_transformers = SimpleNamespace(
        config=model.hf_config, generation_config=_generation_config(model.model)
    )
    return SessionFactory(
        tokenizer,
        vocab_size=model.get_vocab_size(),
        eos_token_ids=eos_token_ids(like_transformers, tokenizer, model.get_vocab_size()),
        context_length=model.max_model_len,
    )


def model_info(
    settings: WorkerSettings,
    config: Any,
    factory: SessionFactory,
    adapters: Mapping[str, Adapter],
    preparer: Preparer | None,
) -> ModelInfo:
    """Of a model that has been loaded, so its files are here."""
    model = config.model_config
    parallel = config.parallel_config
    own = fingerprint_of_files(model.model, model.tokenizer, model.dtype)
    return ModelInfo(
        name=model_name(settings.model) if settings.model is not None else "built-in",
        context_tokens=factory.context_length,
        max_bytes_per_token=factory.max_bytes_per_token,
        device=str(config.device_config.device_type),
        dtype=str(model.dtype).removeprefix("torch."),
        fingerprint=with_adapters(own, adapters),
        decoder=f"vLLM, tensor parallel {parallel.tensor_parallel_size}, "
        f"pipeline parallel {parallel.pipeline_parallel_size}",
        chat=factory.has_chat_template,
        **formats_of(settings, factory, preparer),
        has_vocabulary=True,
        caches_prefixes=bool(config.cache_config.enable_prefix_caching),
        engine="vllm",
        adapters=tuple(adapters),
    )


def _generation_config(source: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(source, local_files_only=True)
    except OSError:
        return None
