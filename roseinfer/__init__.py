"""A continuous-batching inference engine for transformers' causal language models."""

import roseinfer._openmp  # noqa: F401
from roseinfer.engine import InferenceEngine
from roseinfer.outputs import SchedulerStats, StepOutput, StepTimes
from roseinfer.params import SamplingParams
from roseinfer.scheduler import OfflineScheduler, OnlineScheduler
from roseinfer.session import InferenceSession

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
