"""What ends a job from outside: its submitter, or its deadline where no worker lives."""

import hashlib
from functools import lru_cache

from rose.errors import DeadlineExceeded
from rose.protocol.calls.call import Call
from rose.protocol.codec import encode_event
from rose.protocol.events import CancelledEvent, FailedEvent
from rose.protocol.jobs import Priority
from rose.protocol.keys import GROUP, Partition
from rose.protocol.scripts import load

RESULT_TTL_S = 3600

#: A worker that lives ends a late job within a step.
_LEFT_TO_WORKER_MS = 5000


def cancel(partition: Partition, job_id: str, *, ttl_s: int = RESULT_TTL_S) -> Call:
    """`ttl_s`: how long its state is kept, if it ends at once."""
    return Call(
        load("cancel"),
        [
            partition.state(job_id),
            partition.tokens(job_id),
            partition.load,
        ],
        [control_message(job_id), encode_event(CancelledEvent(index=0)), ttl_s],
    )


def delete(partition: Partition, job_id: str, *, ttl_s: int = RESULT_TTL_S) -> Call:
    return Call(
        load("delete"),
        [
            partition.state(job_id),
            partition.tokens(job_id),
            partition.load,
            partition.jobs(Priority.NORMAL),
        ],
        [GROUP, control_message(job_id), encode_event(CancelledEvent(index=0)), ttl_s],
    )


def end_late(partition: Partition, job_id: str, logged: int, *, ttl_s: int = RESULT_TTL_S) -> Call:
    """End a job whose deadline has passed. `logged`: tokens in its log, as far as the caller knows.
    The reply: ms after which to call again; 0 if there is no need."""
    late = FailedEvent.of(DeadlineExceeded("its deadline has passed"), logged)
    return Call(
        load("end_late"),
        [partition.state(job_id), partition.tokens(job_id), partition.load],
        [encode_event(late), logged, _LEFT_TO_WORKER_MS, ttl_s],
    )


@lru_cache(maxsize=4096)
def control_message(job_id: str) -> str:
    """What asks the worker of this job to stop it. It is no id: whoever may publish on the channel
    may also listen there, and who knows an id may read the job's tokens."""
    return hashlib.sha256(job_id.encode()).hexdigest()
