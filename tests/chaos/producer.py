"""Submits jobs, and again after its death: `python -m tests.chaos.producer CONTEXT`."""

import asyncio
from collections.abc import Sequence

from rose.errors import BrokerUnavailable, QueueFull, TenantLimited
from tests.chaos import clock, journal
from tests.chaos.blocking import AnyClient, AnyJob
from tests.chaos.context import LIMIT, Context, run_process
from tests.chaos.journal import Journal
from tests.chaos.patience import cancel
from tests.chaos.plan import JobPlan, Kind

#: Jobs of a submit; a death in the middle leaves some of them in doubt.
_BATCH = 5
#: Jobs submitted again at the start, although they had been acknowledged.
_REPEATED = 10
_POLL_S = 0.05
#: Bytes of its journal that hold a submit for certain.
_RECENT = 4096


class Producer:
    def __init__(self, context: Context, client: AnyClient, journal: Journal) -> None:
        self._context = context
        self._plan = context.options.plan(context.partitions)
        self._client = client
        self._journal = journal

    async def run(self, number: int) -> None:
        """From job `number` on, as far as the limit goes; it is raised while we work."""
        while True:
            limit = int((self._context.folder / LIMIT).read_text())
            numbers = range(number, limit, self._context.of)[:_BATCH]
            if not numbers:
                await asyncio.sleep(_POLL_S)
                continue
            await self._submit([self._plan.job(n) for n in numbers])
            number = numbers[-1] + self._context.of

    async def _submit(self, jobs: list[JobPlan]) -> None:
        """Until it is known to have worked. Every repeat carries the same id or key."""
        while True:
            try:
                handles: Sequence[AnyJob] = await self._client.submit_many(
                    [job.request for job in jobs]
                )
                break
            except (BrokerUnavailable, QueueFull, TenantLimited):
                await asyncio.sleep(_POLL_S)
        for job, handle in zip(jobs, handles, strict=True):
            self._journal.write(job.number, handle.id, clock.now())
        for job, handle in zip(jobs, handles, strict=True):
            if job.kind is Kind.CANCEL_QUEUED:
                await cancel(self._client.job(handle.id))


async def _main(context: Context) -> None:
    name = f"submitted-{context.index}.jsonl"
    before = [number for _, (number, *_) in journal.read_end(context.folder / name, _RECENT)]
    last = max(before, default=None)
    begin = context.index if last is None else last + context.of
    # Goes back a little, as a service that is not sure would.
    begin = max(context.index, begin - _REPEATED * context.of)
    async with context.client() as client:
        await Producer(context, client, Journal(context.folder / name)).run(begin)


def main() -> None:
    run_process(_main)


if __name__ == "__main__":
    main()
