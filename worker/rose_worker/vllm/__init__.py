"""vLLM behind the worker's interface: for models that need several devices or machines.

vLLM computes logits, and keeps the batch and its KV cache. Which token comes is decided by
`roseinfer.sampling`, and when a request ends by `roseinfer.sessions`. So a request that one engine
has started continues in the other. Of a model that embeds or scores it computes pooled states or
logits; `roseinfer.encoders` makes tokens of texts, and vectors and scores of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rose_worker.preparation import Preparer
from rose_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from rose_worker.engine import Engine


def loader(settings: WorkerSettings, preparer: Preparer | None = None) -> Callable[[], Engine]:
    """Check the settings, by vLLM itself where they are its own; the result loads the model.

    Raises: ConfigurationError, ModelNotFound, UnsupportedModel
    """
    # Imported here: these load vLLM, which takes seconds and may not be installed.
    from rose_worker.vllm.installation import check_installation

    check_installation()
    from roseinfer.encoders.model_files import task_of

    task = settings.task or task_of(settings.model)
    if task != "generate":
        from rose_worker.vllm.encoder import encoder_loader

        return encoder_loader(settings, task, preparer)
    from rose_worker.vllm.adapters import find_adapters
    from rose_worker.vllm.arguments import engine_config

    adapters = find_adapters(settings.adapters)
    config = engine_config(settings, adapters)

    def load() -> Engine:
        from rose_worker.vllm.engine import VllmEngine

        return VllmEngine(settings, config, adapters, preparer)

    return load
