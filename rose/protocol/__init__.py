"""The wire contract of roseinfer: what travels through Redis, and nothing that talks to Redis.

`jobs` and `events` are the messages, `codec` their bytes, `keys` where they live, `calls` every
state transition as one Lua script with its keys, arguments and reply. docs/protocol.md describes
the same for other languages.
"""

from rose.protocol.codec import MAX_JOB_BYTES as MAX_JOB_BYTES
from rose.protocol.codec import MAX_METADATA_BYTES as MAX_METADATA_BYTES
from rose.protocol.codec import decode_event as decode_event
from rose.protocol.codec import decode_job as decode_job
from rose.protocol.codec import encode_event as encode_event
from rose.protocol.codec import encode_job as encode_job
from rose.protocol.codec import encode_tokens as encode_tokens
from rose.protocol.codec import most_prompt_logprobs as most_prompt_logprobs
from rose.protocol.codec import readable_job_id as readable_job_id
from rose.protocol.events import TERMINAL_STATUSES as TERMINAL_STATUSES
from rose.protocol.events import CancelledEvent as CancelledEvent
from rose.protocol.events import Event as Event
from rose.protocol.events import FailedEvent as FailedEvent
from rose.protocol.events import FinishedEvent as FinishedEvent
from rose.protocol.events import TokenEvent as TokenEvent
from rose.protocol.events import error_of as error_of
from rose.protocol.jobs import ChatMessage as ChatMessage
from rose.protocol.jobs import FunctionCall as FunctionCall
from rose.protocol.jobs import JobSpec as JobSpec
from rose.protocol.jobs import Priority as Priority
from rose.protocol.jobs import ToolCall as ToolCall
from rose.protocol.jobs import job_from as job_from
from rose.protocol.jobs import new_job_id as new_job_id
from rose.protocol.keys import ASIDE as ASIDE
from rose.protocol.keys import GROUP as GROUP
from rose.protocol.keys import RELEASED as RELEASED
from rose.protocol.keys import EntryKey as EntryKey
from rose.protocol.keys import JobEntry as JobEntry
from rose.protocol.keys import Partition as Partition
from rose.protocol.keys import partition_of as partition_of
