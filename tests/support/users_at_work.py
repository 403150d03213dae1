"""All that the shipped users ever do, each through a proxy of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from rose.errors import JobCancelled, JobFailed, PromptTooLong
from rose.protocol import GROUP, JobSpec, Partition, Priority, encode_job
from rose.sampling import SamplingParams
from rose_producer import AsyncClient, Client, ProducerSettings
from rose_producer.dead_letters import DeadLetters
from tests.support.bench import wait_until
from tests.support.echo import SLOW, serving
from tests.support.listeners import Listeners, assert_echo
from tests.support.proxy import Proxy
from tests.support.redis_users import PASSWORDS

QUEUE = "guarded"
PARTITION = Partition(QUEUE)
USERS = ("producer", "worker", "scaler", "operator")


def url(user: str, port: int, password: str | None = None) -> str:
    return f"redis://{user}:{password or PASSWORDS[user]}@127.0.0.1:{port}/0"


def settings(user: str, port: int) -> ProducerSettings:
    return ProducerSettings(
        redis_url=url(user, port), queue=QUEUE, max_queued_tokens=10**9, poll_interval_s=0.5
    )


def produce_and_serve(admin: redis.Redis, proxies: dict[str, Proxy]) -> str:
    """Returns what the workers logged."""
    by_producer = settings("producer", proxies["producer"].port)
    by_worker = url("worker", proxies["worker"].port)
    slow: dict[str, Any] = {"queue": QUEUE, **SLOW}
    with Client(by_producer) as client:
        admin.hset(PARTITION.state("0-late"), "cancel", "1")
        late = client.submit("z", job_id="0-late", max_new_tokens=1)
        raw = encode_job(JobSpec(id="0-raw", prompt="x", sampling=SamplingParams(max_new_tokens=1)))
        admin.xadd(PARTITION.jobs(Priority.NORMAL), {"job": raw})
        waiting, spoilt = client.submit_many(["x", "y"])
        for job in (waiting, spoilt):
            admin.set(PARTITION.tokens(job.id), "not a log")
        assert waiting.cancel()
        with pytest.raises(JobCancelled):
            waiting.result(90)
        with serving("first", by_worker, max_context=2000, **slow) as victim:
            wait_until(lambda: spoilt.status().status == "failed")
            for job in (late, client.job("0-raw")):
                assert job.result(90).finish_reason == "length"
            with pytest.raises(JobFailed, match="somebody else"):
                spoilt.result(90)
            chat = [{"role": "user", "content": "x" * 2000}]
            long = client.submit(chat, job_id="0-long", max_new_tokens=5)
            with pytest.raises(PromptTooLong):
                long.result(90)
            moving = client.submit("ab", max_new_tokens=100, idempotency_key="k")
            assert client.submit("cd", idempotency_key="k").id == moving.id
            listeners = Listeners(by_producer, moving.id)
            wait_until(lambda: listeners.have(5))
            assert client.queue_status().running == 1
            wait_until(lambda: admin.exists(PARTITION.reader))
            victim.kill()
            logs = victim.log
        with serving("second", by_worker, grace_s=0, **slow) as drained:
            wait_until(lambda: moving.status().epoch == 2)
            # It has asked for how long the victim is the elected reader still.
            wait_until(lambda: "cmdstat_pttl" in admin.info("commandstats"))
            assert drained.terminate() == 0
            logs += drained.log
        admin.delete(PARTITION.reader)  # the victim's lease; it would lapse by itself
        with (
            serving("third", by_worker, **slow) as last,
            serving("idle", by_worker, **slow) as idle,
        ):
            wait_until(lambda: admin.exists(PARTITION.idle[2]))  # one of them waits for its turn
            assert_echo(listeners.events(), "ab", 100)
            admin.script_flush()
            running = client.submit("x", max_new_tokens=100_000)
            wait_until(lambda: running.status().tokens > 2)
            admin.script_flush()
            assert running.cancel()
            with pytest.raises(JobCancelled):
                running.result(90)
            asyncio.run(use_async(by_producer))
            look_after_dead_letters(proxies["operator"])
            assert (last.terminate(), idle.terminate()) == (0, 0)
            return logs + last.log + idle.log


async def use_async(given: ProducerSettings) -> None:
    async with AsyncClient(given) as client:
        job = await client.submit("ab", max_new_tokens=3)
        assert (await job.result(90)).token_ids == (97, 98, 97)
        assert (await job.status()).status == "finished"
        assert not await job.cancel()
        assert (await client.queue_status()).dead_letters == 2


def look_after_dead_letters(through: Proxy) -> None:
    given = settings("operator", through.port)
    with DeadLetters(given) as letters, Client(given) as client:
        too_long, spoilt = letters.list()
        assert too_long.job_id == "0-long"
        through.swallow = b"\r\nEVAL\r\n"  # so that the call is repeated
        again = client.job(letters.retry(too_long.handle).new_id)
        wait_until(lambda: again.status().status == "finished")
        assert client.queue_status().dead_letters == 1
        assert letters.purge([spoilt.handle]) == 1
        assert letters.purge_all() == 0


def scale(through: Proxy) -> None:
    with redis.Redis.from_url(url("scaler", through.port), protocol=2) as scaler:
        for stream in PARTITION.all_jobs:
            (group,) = scaler.xinfo_groups(stream)
            assert group["lag"] == 0
            assert scaler.xpending(stream, GROUP)["pending"] == 0
            assert scaler.xlen(stream) == 0
