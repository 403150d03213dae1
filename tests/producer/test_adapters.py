"""A job that names a LoRA adapter: refused at once where the workers have announced others."""

import re

import pytest
import redis

from rose.errors import InvalidParameter
from rose.protocol import Partition, Priority, decode_job
from rose_producer import Client, Request
from tests.support.echo import StartWorker


def announce(raw: redis.Redis, partition: Partition, **facts: str) -> None:
    raw.hset(partition.model, mapping={"name": "m", **facts})


def test_an_adapter_that_the_workers_serve_travels_with_the_job(
    client: Client, raw: redis.Redis, partition: Partition
) -> None:
    # given
    announce(raw, partition, engine="vllm", adapters="law french")
    # when
    jobs = client.submit_many([Request("x", adapter="french"), Request("y")])
    # then
    entries = raw.xrange(partition.jobs(Priority.NORMAL))
    sent = [decode_job(fields[b"job"]) for _, fields in entries]
    assert [(job.id, job.adapter) for job in sent] == [(jobs[0].id, "french"), (jobs[1].id, None)]


@pytest.mark.parametrize(
    ("engine", "adapters", "why"),
    [
        ("vllm", "law french", "the queue's workers serve law, french"),
        (
            "vllm",
            "latin2 x.latin",
            "the queue's workers serve latin2, x.latin",
        ),  # no part of a name is a name
        ("rose", "", "the queue's workers, of the engine rose, serve none"),
    ],
)
def test_another_is_refused_at_submit(
    client: Client, raw: redis.Redis, partition: Partition, engine: str, adapters: str, why: str
) -> None:
    # given
    announce(raw, partition, engine=engine, adapters=adapters)
    # when
    with pytest.raises(InvalidParameter, match=re.escape(f"'latin' is not served: {why}")) as told:
        client.submit_many([Request("x", job_id="0-a"), Request("x", adapter="latin")])
    # then
    assert told.value.accepted == ("0-a",)
    assert raw.xlen(partition.jobs(Priority.NORMAL)) == 1


def test_an_adapters_name_is_checked_before_anything_is_sent(client: Client) -> None:
    for name in ("", "a b", "../x", "x" * 65):
        with pytest.raises(InvalidParameter, match="adapter"):
            client.submit("x", adapter=name)


def test_before_a_worker_has_come_the_engine_decides(
    client: Client, start_worker: StartWorker
) -> None:
    # given: nobody has announced anything
    job = client.submit("x", adapter="french", max_new_tokens=1)
    # when
    start_worker()
    # then
    with pytest.raises(InvalidParameter, match="the engine null has no LoRA adapters"):
        job.result(90)
