"""Jobs that cannot run."""

from rose.protocol.calls.call import Arg, Call, ms_until, now_ms
from rose.protocol.codec import encode_event
from rose.protocol.events import FailedEvent
from rose.protocol.jobs import JobSpec
from rose.protocol.keys import GROUP, EntryKey, Partition
from rose.protocol.scripts import load


def dead_letter(
    partition: Partition,
    entry: EntryKey,
    consumer: str,
    *,
    raw: bytes,
    job_id: str | None,
    event: FailedEvent,
    keep: int,
    keep_bytes: int,
    keep_s: int,
    ttl_s: int,
) -> Call:
    """`raw`: the encoded job; `job_id`: None if `raw` cannot be read; `event`: the reason, which
    becomes the job's terminal event. Keeps the newest `keep` dead letters for `keep_s` seconds, and
    no more of them than `keep_bytes` hold."""
    keys = [entry.stream, partition.dead]
    args: list[Arg] = [GROUP, consumer, entry.id, event.code, event.message, raw]
    args += [keep, keep_bytes, keep_s, ttl_s]
    if job_id is not None:
        keys += [partition.state(job_id), partition.tokens(job_id), partition.load]
        keys.append(partition.running)
        args += [job_id, encode_event(event)]
    return Call(load("dead_letter"), keys, args)


def retry(
    partition: Partition,
    letter: str,
    stream: str,
    job: JobSpec,
    raw: bytes,
    *,
    retry_of: str,
    tenant: str = "",
    level: int = 2,
) -> Call:
    """`letter`: the id of its entry in the stream of dead letters; `job`: has a new id; `stream`:
    the job stream that it came from. `tenant`, `level` (of its priority, from 1): as the letter
    says."""
    return Call(
        load("retry"),
        [partition.dead, stream, partition.state(job.id), partition.load],
        [
            letter,
            raw,
            retry_of,
            job.token_estimate,
            ms_until(job.deadline_ms, now_ms()),
            tenant,
            level,
            job.token_estimate - job.sampling.max_new_tokens,
        ],
    )
