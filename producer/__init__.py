"""The client that other services import: submit prompts, stream tokens exactly once.

    from producer import Client

    with Client() as client:
        job = client.submit("Once upon a time", max_new_tokens=100)
        for event in job.stream():
            ...

Loads neither torch nor transformers.
"""

from producer.aclient import AsyncClient, AsyncJob
from producer.client import Client, Job
from producer.dead_letters import DeadLetter, DeadLetters
from producer.request import Request
from producer.results import JobStatus, QueueStatus, Result
from producer.settings import ProducerSettings
from protocol import (
    CancelledEvent,
    ChatMessage,
    Event,
    FailedEvent,
    FinishedEvent,
    Priority,
    Sampling,
    TokenEvent,
    TokenLogprob,
)

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "CancelledEvent",
    "ChatMessage",
    "Client",
    "DeadLetter",
    "DeadLetters",
    "Event",
    "FailedEvent",
    "FinishedEvent",
    "Job",
    "JobStatus",
    "Priority",
    "ProducerSettings",
    "QueueStatus",
    "Request",
    "Result",
    "Sampling",
    "TokenEvent",
    "TokenLogprob",
]
