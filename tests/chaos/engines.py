"""The engines that workers of a run may have."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

#: Both are for one core each. vLLM compiles nothing, and its cache holds what the jobs need.
_SETTINGS: dict[str, dict[str, Any]] = {
    "rose": {"torch_threads": 1},
    "vllm": {"cuda_graphs": False, "vllm_args": "--kv-cache-memory-bytes 128M"},
}


_MODULES = (
    "rose_worker.vllm.arguments",
    "rose_worker.vllm.engine",
    "rose_worker.vllm.sampling",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)


def settings_of(engine: str) -> dict[str, Any]:
    """What `rose worker` is told."""
    return {"engine": engine, **_SETTINGS.get(engine, {})}


def preload(engines: Iterable[str]) -> None:
    """What each start would import again for many seconds."""
    if "vllm" not in engines:
        return
    from rose_worker.vllm.installation import check_installation

    check_installation()
    for module in _MODULES:
        importlib.import_module(module)
