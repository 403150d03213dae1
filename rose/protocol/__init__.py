"""The wire contract of roseinfer: what travels through Redis, and nothing that talks to Redis.

`jobs` and `events` are the messages, `codec` their bytes, `keys` where they live, `calls` every
state transition as one Lua script with its keys, arguments and reply. docs/protocol.md describes
the same for other languages.
"""

from rose.protocol.codec import (
    MAX_JOB_BYTES,
    MAX_METADATA_BYTES,
    decode_event,
    decode_job,
    encode_event,
    encode_job,
    encode_tokens,
    readable_job_id,
)
from rose.protocol.events import (
    TERMINAL_STATUSES,
    CancelledEvent,
    Event,
    FailedEvent,
    FinishedEvent,
    TokenEvent,
    error_of,
)
from rose.protocol.jobs import ChatMessage, JobSpec, Priority, new_job_id, validated
from rose.protocol.keys import (
    GROUP,
    RELEASED,
    EntryKey,
    JobEntry,
    Partition,
    partition_of,
)

__all__ = [
    "GROUP",
    "MAX_JOB_BYTES",
    "MAX_METADATA_BYTES",
    "RELEASED",
    "TERMINAL_STATUSES",
    "CancelledEvent",
    "ChatMessage",
    "EntryKey",
    "Event",
    "FailedEvent",
    "FinishedEvent",
    "JobEntry",
    "JobSpec",
    "Partition",
    "Priority",
    "TokenEvent",
    "decode_event",
    "decode_job",
    "encode_event",
    "encode_job",
    "encode_tokens",
    "error_of",
    "new_job_id",
    "partition_of",
    "readable_job_id",
    "validated",
]
