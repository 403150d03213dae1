"""The parts of a batch on their way to the storage."""

import asyncio
from pathlib import Path

import redis

from rose.protocol.keys import BulkKeys
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.batches.line import Answer, LineCounter
from rose_gateway.batches.parts import PartStorer
from rose_gateway.storage.batch_repository import Lease
from tests.support.batch_lines import completion, line_of, opened_services

FAR_MS = 2**41


async def test_a_piece_is_no_garbage_while_its_part_waits_for_a_line(
    own_broker: EmbeddedBroker, queue: str, tmp_path: Path
) -> None:
    async with opened_services(own_broker.url, queue, storage=str(tmp_path)) as services:
        # given: a part of two lines, the first of which is answered with more than is held
        lease = Lease("batch_1", 1, "host-7-ab")
        counter = LineCounter(services.batches, lease, services.metrics, lambda _: None)
        storer = PartStorer(
            services.files,
            services.batches,
            lease,
            counter,
            spawn=asyncio.create_task,
            kept_until_ms=FAR_MS,
        )
        for number in (1, 2):
            assert await storer.begin(line_of(number, completion("ab")))
        # when
        await storer.add(Answer(1, "line-1", b"x" * 2**20, succeeded=True))
        # then: it is stored, and nobody may delete it before the batch must be over
        with redis.Redis(port=own_broker.port, protocol=2) as raw:
            garbage = raw.zrange(BulkKeys.GARBAGE, 0, -1, withscores=True)
    assert garbage == [(b"batches/batch_1/output-000000-1-ab-0.jsonl", FAR_MS)]
