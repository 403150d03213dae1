"""Logs that are written again: the same tokens in events with other boundaries."""

from collections.abc import Iterator, Sequence
from itertools import chain, cycle
from typing import Any

import redis
from msgspec import structs

from rose import engine_records
from rose.engine_records import StepOutput
from rose.protocol import Event, Partition, TokenEvent, decode_event, encode_event


def joined(events: Sequence[TokenEvent]) -> TokenEvent:
    """One event of several that follow each other, each with one token."""
    texts = [event.text for event in events]
    logprobs = tuple(chain.from_iterable(event.logprobs or () for event in events))
    return structs.replace(
        events[0],
        token_ids=tuple(event.token_ids[0] for event in events),
        text="".join(texts),
        logprobs=logprobs or None,
        text_lengths=engine_records.text_lengths(texts),
    )


def in_portions(events: Sequence[Event], sizes: Sequence[int]) -> Iterator[Event]:
    """A log of single tokens in events of these sizes, again and again."""
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    start, size = 0, cycle(sizes)
    while start < len(tokens):
        end = start + next(size)
        yield joined(tokens[start:end])
        start = end
    yield from (event for event in events if event.is_terminal)


def log_of(raw: redis.Redis, partition: Partition, job_id: str) -> list[Event]:
    entries: Any = raw.xrange(partition.tokens(job_id))
    return [decode_event(fields[b"event"]) for _, fields in entries]


def write_log(
    raw: redis.Redis,
    partition: Partition,
    job_id: str,
    log: Sequence[Event],
) -> None:
    """In the place of the one that is there."""
    with raw.pipeline(transaction=True) as writing:
        writing.delete(partition.tokens(job_id))
        for event in log:
            fields = {"event": encode_event(event)}
            writing.xadd(partition.tokens(job_id), fields, id=event.entry_id)  # type: ignore[arg-type]
        writing.execute()


def merged(outputs: Sequence[StepOutput]) -> StepOutput:
    """What several steps brought for a request, as one step that computed all of it."""
    texts = [output.text for output in outputs]
    logprobs = tuple(chain.from_iterable(output.logprobs or () for output in outputs))
    ids = tuple(chain.from_iterable(output.token_ids for output in outputs))
    last = outputs[-1]
    return StepOutput(
        last.request_id,
        outputs[0].index,
        ids,
        "".join(texts),
        last.finish_reason,
        logprobs or None,
        last.error,
        last.cached_tokens,
        outputs[0].prompt_logprobs,
        engine_records.text_lengths(texts) if len(ids) > 1 else None,
        last.stop,
    )
