"""The engines that workers of a run may have."""

from typing import Any

#: Both are for one core each. vLLM compiles nothing, and its cache holds what the jobs need.
_SETTINGS: dict[str, dict[str, Any]] = {
    "rose": {"torch_threads": 1},
    "vllm": {"cuda_graphs": False, "vllm_args": "--kv-cache-memory-bytes 128M"},
}


def settings_of(engine: str) -> dict[str, Any]:
    """What `rose worker` is told."""
    return {"engine": engine, **_SETTINGS.get(engine, {})}
