"""Follows jobs and writes down all it is given: `python -m tests.chaos.subscriber CONTEXT`.

Its journal is its cursor: after its death it goes on from what it had written.
"""

import asyncio
from contextlib import aclosing, suppress

import redis.asyncio
from pydantic import BaseModel
from redis.asyncio.client import PubSub

from rose.errors import BrokerUnavailable, JobNotFound, RoseError
from rose.protocol import Event, Partition, decode_event
from rose.transport import CONNECTION_LOST, AsyncSubscriptions
from rose_producer import AsyncClient
from tests.chaos import clock
from tests.chaos.blocking import AnyClient
from tests.chaos.context import INBOX, QUEUE, RECONNECT_S, Context, run_process
from tests.chaos.journal import Journal, Tail
from tests.chaos.patience import cancel
from tests.chaos.plan import COPY_BASE, RAW_BASE, JobPlan, Kind

_POLL_S = 0.05
_AGAIN_S = 0.2
#: A message that was lost is missed for no longer than this.
_LOG_POLL_S = 1.0


class Recalled(BaseModel):
    """What a life of a subscriber knew when it began."""

    submitted: dict[str, int]
    """bytes of each journal of submits that it had read"""
    delivered: dict[str, int]
    """the same of its own journal"""
    open: dict[int, str]
    """number and id of jobs that had not ended"""
    cursors: dict[int, int]
    """theirs"""
    ended: list[int]


class Subscriber:
    def __init__(self, context: Context, client: AnyClient, record: Journal) -> None:
        self._context = context
        self._plan = context.options.plan(context.partitions)
        self._client = client
        self._journal = record
        self._raised = Journal(context.folder / f"raised-{context.index}.jsonl")
        self._submitted = Tail(context.folder, "submitted-*.jsonl")
        self.open: dict[int, str] = {}
        """jobs that are followed, or are to be, and their ids"""
        self._cursor: dict[int, int] = {}
        self._ended: set[int] = set()
        self._follows: dict[int, asyncio.Task[None]] = {}

    def recall(self) -> None:
        """What earlier lives of this process were given: as the last one had found it, and what it
        wrote down from then on."""
        folder, index = self._context.folder, self._context.index
        found = folder / f"recalled-{index}.json"
        if found.exists():
            recalled = Recalled.model_validate_json(found.read_bytes())
            self._submitted = Tail(folder, "submitted-*.jsonl", recalled.submitted)
            self.open, self._cursor = dict(recalled.open), dict(recalled.cursors)
            self._ended = set(recalled.ended)
        offsets = recalled.delivered if found.exists() else {}
        delivered = Tail(folder, f"delivered-{index}.jsonl", offsets)
        for _, (number, _, _, event) in delivered.new():
            self._cursor[number] = event["index"] + len(event.get("token_ids", ()))
            if event["type"] != "tokens":
                self._end(number)
        self._learn()
        recalled = Recalled(
            submitted=self._submitted.offsets,
            delivered=delivered.offsets,
            open=self.open,
            cursors=self._cursor,
            ended=sorted(self._ended),
        )
        new = found.with_suffix(".new")
        new.write_text(recalled.model_dump_json())
        new.rename(found)

    async def run(self) -> None:
        """Follow every job of ours, as its submit becomes known."""
        while True:
            self._learn()
            for number, job_id in self.open.items():
                if number not in self._follows:
                    follow = self._follow(self._plan.job(number), job_id)
                    self._follows[number] = asyncio.create_task(follow)
            for number in [n for n, task in self._follows.items() if task.done()]:
                self._follows.pop(number).result()
            await asyncio.sleep(_POLL_S)

    def cursor(self, number: int) -> int:
        """How many tokens of a job have been given."""
        return self._cursor.get(number, 0)

    def _learn(self) -> None:
        for _, (number, job_id, _) in self._submitted.new():
            ours = number % self._context.of == self._context.index
            if ours and number not in self._ended:
                self.open.setdefault(number, job_id)

    def _end(self, number: int) -> None:
        self._ended.add(number)
        self.open.pop(number, None)
        self._cursor.pop(number, None)

    async def _follow(self, job: JobPlan, job_id: str) -> None:
        if job.number not in self._cursor:
            await asyncio.sleep(job.join_s)
        while job.number not in self._ended:
            try:
                if self._context.options.sabotage == "log":
                    await self._follow_channel_alone(job, job_id)
                else:
                    await self._follow_stream(job, job_id)
            except (BrokerUnavailable, JobNotFound) as error:
                if not self._may_be_unknown(job.number, error):
                    self._raised.write(job.number, job_id, clock.now(), repr(error))
                    self._give_up(job.number, job_id, error)
                await asyncio.sleep(_AGAIN_S)
            except RoseError as error:
                failure = {"type": "error", "index": self.cursor(job.number)}
                self._write(job.number, job_id, failure | {"message": repr(error)})

    def _give_up(self, number: int, job_id: str, error: RoseError) -> None:
        """With a failover a job may be forgotten: it is not waited for until the run's end."""
        if isinstance(error, JobNotFound) and self._context.options.topology == "sentinel":
            failure = {"type": "error", "index": self.cursor(number)}
            self._write(number, job_id, failure | {"message": repr(error)})

    def _may_be_unknown(self, number: int, error: RoseError) -> bool:
        """A job that was added past the client has no state until a worker sees it."""
        raw = RAW_BASE <= number < COPY_BASE
        return isinstance(error, JobNotFound) and raw and number not in self._cursor

    async def _follow_stream(self, job: JobPlan, job_id: str) -> None:
        stream = self._client.job(job_id).stream(self.cursor(job.number))
        async with aclosing(stream) as events:
            async for event in events:
                await self._take(job, job_id, event)

    async def _follow_channel_alone(self, job: JobPlan, job_id: str) -> None:
        """The sabotage: pub/sub without the log behind it."""
        client = redis.asyncio.Redis.from_url(self._context.redis_url, protocol=2)
        pubsub: PubSub = client.pubsub(ignore_subscribe_messages=True)
        with suppress(*CONNECTION_LOST):
            async with client, pubsub:
                await pubsub.subscribe(Partition(QUEUE).channel(job_id))
                while job.number not in self._ended:
                    message = await pubsub.get_message(timeout=_LOG_POLL_S)
                    if message is not None:
                        await self._take(job, job_id, decode_event(message["data"]))

    async def _take(self, job: JobPlan, job_id: str, event: Event) -> None:
        # The version before has no event with binary in it.
        as_json = getattr(event, "as_json", event.as_dict)
        self._write(job.number, job_id, as_json())
        await asyncio.sleep(job.linger_s)
        before = self.cursor(job.number)
        self._cursor[job.number] = event.cursor
        if event.is_terminal:
            self._end(job.number)
        elif job.kind is Kind.CANCEL_RUNNING and before <= job.act_at < event.cursor:
            await cancel(self._client.job(job_id))

    def _write(self, number: int, job_id: str, event: dict[str, object]) -> None:
        self._journal.write(number, job_id, clock.now(), event)
        if event["type"] == "error":
            self._end(number)


async def _main(context: Context) -> None:
    name = f"delivered-{context.index}.jsonl"
    settings = {"poll_interval_s": _LOG_POLL_S, "reconnect_timeout_s": RECONNECT_S}
    async with context.client(**settings) as client:
        if isinstance(client, AsyncClient):  # the blocking one keeps unread messages in its socket
            client._subscriptions = AsyncSubscriptions(client.settings, inbox_size=INBOX)
        subscriber = Subscriber(context, client, Journal(context.folder / name))
        subscriber.recall()
        await subscriber.run()


def main() -> None:
    run_process(_main)


if __name__ == "__main__":
    main()
