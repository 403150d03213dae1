"""A continuous-batching inference engine for transformers' causal language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import roseinfer._openmp  # noqa: F401
from rose.engine_records import SchedulerStats, StepOutput, StepTimes
from rose.sampling import SamplingParams

if TYPE_CHECKING:
    from roseinfer.engine import InferenceEngine
    from roseinfer.scheduling.scheduler import OfflineScheduler, OnlineScheduler
    from roseinfer.sessions.session import InferenceSession

__all__ = [
    "InferenceEngine",
    "InferenceSession",
    "OfflineScheduler",
    "OnlineScheduler",
    "SamplingParams",
    "SchedulerStats",
    "StepOutput",
    "StepTimes",
]

_MODULES = {
    "InferenceEngine": "engine",
    "InferenceSession": "sessions.session",
    "OfflineScheduler": "scheduling.scheduler",
    "OnlineScheduler": "scheduling.scheduler",
}


def __getattr__(name: str) -> Any:
    """Torch and transformers take seconds to load: not before something asks for the engine."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
