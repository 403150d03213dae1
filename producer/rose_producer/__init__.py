"""The client that other services import: submit prompts, stream tokens exactly once.

    from rose_producer import Client

    with Client() as client:
        job = client.submit("Once upon a time", max_new_tokens=100)
        for event in job.stream():
            ...

Loads neither torch nor transformers.
"""

from typing import TYPE_CHECKING

from rose.engine_records import PromptLogprobs, TokenLogprob
from rose.lazy import loader
from rose.protocol import (
    CancelledEvent,
    ChatMessage,
    Event,
    FailedEvent,
    FinishedEvent,
    FunctionCall,
    Priority,
    TokenEvent,
    ToolCall,
)
from rose.protocol.status import JobRecord, JobStatus, QueueStatus, ServedModel
from rose.protocol.tenants import TenantLimits, TenantsStatus, TenantStatus
from rose.sampling import SamplingParams
from rose_producer.embeddings import Embeddings
from rose_producer.request import Request
from rose_producer.results import Result

if TYPE_CHECKING:
    from rose_producer.async_client import AsyncClient, AsyncJob
    from rose_producer.client import Client, Job
    from rose_producer.dead_letters import DeadLetter, DeadLetters
    from rose_producer.settings import ProducerSettings
    from rose_producer.tenants import Tenants

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "CancelledEvent",
    "ChatMessage",
    "Client",
    "DeadLetter",
    "DeadLetters",
    "Embeddings",
    "Event",
    "FailedEvent",
    "FinishedEvent",
    "FunctionCall",
    "Job",
    "JobRecord",
    "JobStatus",
    "Priority",
    "ProducerSettings",
    "PromptLogprobs",
    "QueueStatus",
    "Request",
    "Result",
    "SamplingParams",
    "ServedModel",
    "TenantLimits",
    "TenantStatus",
    "Tenants",
    "TenantsStatus",
    "TokenEvent",
    "TokenLogprob",
    "ToolCall",
]

__getattr__ = loader(
    __name__,
    {
        "async_client": ["AsyncClient", "AsyncJob"],
        "client": ["Client", "Job"],
        "dead_letters": ["DeadLetter", "DeadLetters"],
        "settings": ["ProducerSettings"],
        "tenants": ["Tenants"],
    },
)
