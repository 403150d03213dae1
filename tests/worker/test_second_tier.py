"""A worker that was killed leaves to the next one what it has computed."""

from pathlib import Path
from typing import Any

import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import ServiceDied, WorkerProcess
from rose_producer import AsyncClient
from tests.support.time_limit import TimeLimit

PROMPT = "Once upon a time there was a dog who wanted to see the sea. " * 4
SAMPLING: dict[str, Any] = {
    "max_new_tokens": 120,
    "ignore_eos": True,
    "temperature": 0.9,
    "seed": 7,
}
WRITTEN = "rose_second_tier_written_bytes_total"
HIT = "rose_second_tier_hit_tokens_total"


def worker(
    broker: EmbeddedBroker, queue: str, folder: Path, name: str = "worker", **settings: Any
) -> WorkerProcess:
    return WorkerProcess(
        name,
        broker.url,
        queue=queue,
        torch_threads=1,
        lease_s=1,
        second_tier_bytes=2**23,
        second_tier_folder=str(folder),
        **settings,
    )


async def test_a_takeover_computes_what_is_not_in_the_files(
    broker: EmbeddedBroker, queue: str, tmp_path: Path
) -> None:
    folder = tmp_path / "tier"
    async with AsyncClient(redis_url=broker.url, queue=queue) as client:
        # given a worker that is killed when it has written the prompt and some of its answer
        with worker(broker, queue, folder, name="first", min_step_s=0.05) as first:
            first.wait_ready()
            expected = await (await client.submit(PROMPT, cache_salt="x", **SAMPLING)).result()
            before = first.metrics()[WRITTEN]
            job = await client.submit(PROMPT, cache_salt="a", **SAMPLING)
            events = job.stream()
            tokens = 0
            while tokens < 40:
                event = await anext(events)
                assert event.type == "tokens"
                tokens += len(event.token_ids)
            limit = TimeLimit(60)
            while first.metrics()[WRITTEN] < 2 * before * 0.6:
                assert not limit.passed
            first.kill()
        # when another one takes over
        with worker(broker, queue, folder, name="second") as second:
            second.wait_ready()
            result = await job.result()
            # then the text is the same, and so much was found
            assert result.token_ids == expected.token_ids
            assert result.text == expected.text
            whole_blocks = (result.prompt_tokens - 1) // 16 * 16
            assert result.cached_tokens >= whole_blocks
            assert second.metrics()[HIT] >= whole_blocks + 16
            # and whoever has another salt finds nothing
            other = await (await client.submit(PROMPT, cache_salt="b", **SAMPLING)).result()
            assert (other.cached_tokens, other.token_ids) == (0, expected.token_ids)


def test_a_worker_does_not_start_with_files_that_others_may_read(
    broker: EmbeddedBroker, queue: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    with worker(broker, queue, tmp_path) as refused:
        with pytest.raises(ServiceDied):
            refused.wait_ready()
        assert f"chmod 700 {tmp_path}" in refused.log
