"""A scheduler's options: their limits and defaults."""

from rose.errors import ConfigurationError
from roseinfer.execution.engine_core import EngineCore


def check_limits(max_batch_size: int, max_step_tokens: int, itl_target_ms: float | None) -> None:
    """Raises ConfigurationError."""
    for name, value in (("max_batch_size", max_batch_size), ("max_step_tokens", max_step_tokens)):
        if value < 1:
            raise ConfigurationError(f"{name}={value} is not possible: it must be at least 1")
    if itl_target_ms is not None and not 0 <= itl_target_ms < float("inf"):
        raise ConfigurationError(f"itl_target_ms={itl_target_ms} must be at least 0")


def overlaps(engine: EngineCore, wanted: bool | None) -> bool:
    """Whether steps are launched ahead; raises ConfigurationError where they cannot be."""
    if wanted and not engine.runs_ahead:
        raise ConfigurationError(
            "overlap=True is not possible: this engine's runner needs every token on the host"
        )
    return engine.runs_ahead and engine.device.type == "cuda" if wanted is None else wanted


def itl_target_s(engine: EngineCore, target_ms: float | None, *, streams: bool) -> float | None:
    """See `PrefillPace`. Where none is set it is 0, no target, without a stream of tokens, and on a
    GPU, where it was not measured."""
    if target_ms is None:
        return None if streams and engine.device.type == "cpu" else 0.0
    return target_ms / 1e3
