"""Dead letters: found, read, given another life, dropped."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from rose.errors import DeadLetterNotFound, InvalidParameter, MalformedMessage
from rose.protocol import JobSpec, Partition, Priority, calls, decode_job, encode_job
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, DeadLetters, ProducerSettings

DAY_MS = 86_400_000


class Desk:
    """A queue of two partitions, and hand-written letters in it."""

    def __init__(self, broker: EmbeddedBroker, queue: str) -> None:
        self.redis = redis.Redis(port=broker.port, protocol=2)
        self.settings = ProducerSettings(redis_url=broker.url, queue=queue, partitions=2)
        self.partitions = [Partition(queue, 0), Partition(queue, 1)]
        self.letters = DeadLetters(self.settings)
        self.client = Client(self.settings)

    def close(self) -> None:
        self.client.close()
        self.letters.close()
        self.redis.close()

    def give_up(
        self,
        job: bytes | JobSpec,
        *,
        code: str = "crash_loop",
        partition: int = 0,
        priority: Priority = Priority.NORMAL,
        entry: str = "*",
    ) -> str:
        """Writes a letter as dead_letter.lua does; returns its handle."""
        where = self.partitions[partition]
        fields: dict[Any, Any] = {
            "id": job.id if isinstance(job, JobSpec) else "",
            "code": code,
            "message": "three workers died",
            "stream": where.jobs(priority),
            "entry": "5-0",
            "job": encode_job(job) if isinstance(job, JobSpec) else job,
        }
        return f"{partition}:{self.redis.xadd(where.dead, fields, id=entry).decode()}"

    def waiting(self, partition: int = 0) -> list[tuple[Priority, JobSpec]]:
        return [
            (priority, decode_job(fields[b"job"]))
            for priority in Priority
            for _, fields in self.redis.xrange(self.partitions[partition].jobs(priority))
        ]


@pytest.fixture
def desk(any_broker: EmbeddedBroker, queue: str) -> Iterator[Desk]:
    desk = Desk(any_broker, queue)
    yield desk
    desk.close()


def job(job_id: str = "0-old", **fields: Any) -> JobSpec:
    return JobSpec(id=job_id, prompt="secret", **fields)


def test_letters_of_all_partitions_come_newest_first(desk: Desk) -> None:
    # given: more than one read of a partition brings
    expected = [
        desk.give_up(job(), partition=i % 2, entry=f"{1000 + i // 3}-{i % 3}") for i in range(150)
    ]
    # then
    assert [letter.handle for letter in desk.letters.list()] == expected[::-1]
    assert [letter.handle for letter in desk.letters.list(limit=3)] == expected[:-4:-1]


def test_a_letter_says_what_came_and_why_it_could_not_run(desk: Desk) -> None:
    # given
    handle = desk.give_up(job(), partition=1, priority=Priority.LOW, entry="1700000000000-7")
    broken = desk.give_up(b"\xc1garbage", code="malformed_message")
    # when
    letter, unread = desk.letters.get(handle), desk.letters.get(broken)
    # then
    assert handle == letter.handle == "1:1700000000000-7"
    assert (letter.at_ms, letter.job_id, letter.code) == (1700000000000, "0-old", "crash_loop")
    assert letter.decode() == job()
    assert letter.stream.endswith(":1}:jobs:low")
    assert (unread.job_id, unread.job) == (None, b"\xc1garbage")
    with pytest.raises(MalformedMessage):
        unread.decode()
    assert [x.handle for x in desk.letters.list(code="malformed_message")] == [broken]


def test_a_retry_is_a_new_job_where_the_old_one_was(desk: Desk) -> None:
    # given
    old = job(deadline_ms=1, metadata={"user": "x"}, sampling={"seed": 3})
    handle = desk.give_up(old, partition=1, priority=Priority.HIGH)
    # when
    again = desk.letters.retry(handle)
    # then: all of it but its id, and its deadline, which had passed
    ((priority, new),) = desk.waiting(partition=1)
    assert priority is Priority.HIGH
    assert new == old.model_copy(update={"id": again.new_id, "deadline_ms": None})
    assert (again.job_id, again.handle) == ("0-old", handle)
    assert again.new_id.startswith("1-")
    # and it is a job like any other, that says where it comes from
    status = desk.client.job(again.new_id).status()
    assert (status.status, status.tokens, status.epoch) == ("queued", 0, 0)
    assert status.retry_of == "0-old"
    assert desk.client.queue_status().queued_tokens == old.token_estimate
    assert list(desk.letters.list()) == []


def test_a_deadline_that_is_still_to_come_is_kept(desk: Desk) -> None:
    later = int(time.time() * 1000) + DAY_MS
    desk.letters.retry(desk.give_up(job(deadline_ms=later)))
    ((_, new),) = desk.waiting()
    assert new.deadline_ms == later


def test_a_retry_whose_reply_was_lost_enqueues_once(desk: Desk) -> None:
    # given
    partition, spec = desk.partitions[0], job("0-new")
    entry = desk.give_up(job()).partition(":")[2]
    stream = partition.jobs(Priority.NORMAL)
    raw = encode_job(spec)
    call = calls.retry(partition, entry, stream, spec, raw, retry_of="0-old")
    # when: the client library sends it twice
    outcomes = [desk.letters._redis.run(call), desk.letters._redis.run(call)]
    # then
    assert outcomes == [b"RETRIED", b"RETRIED"]
    assert [new.id for _, new in desk.waiting()] == ["0-new"]
    assert desk.client.queue_status().queued_tokens == spec.token_estimate
    # and somebody else's retry of the same letter finds nothing
    other = calls.retry(partition, entry, stream, job("0-other"), raw, retry_of="")
    assert desk.letters._redis.run(other) == b"GONE"
    assert len(desk.waiting()) == 1


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"\xc1garbage", MalformedMessage),
        (b"", MalformedMessage),
        (b"\x82\xa2id\xa30-x\xa6prompt\x05", InvalidParameter),
    ],
)
def test_what_cannot_be_decoded_cannot_be_retried_and_stays(
    desk: Desk, raw: bytes, error: type[Exception]
) -> None:
    # given
    handle = desk.give_up(raw)
    # when / then
    with pytest.raises(error):
        desk.letters.retry(handle)
    assert desk.letters.get(handle).job == raw
    assert desk.waiting() == []


def test_a_letter_that_somebody_made_up_is_read_and_not_retried(desk: Desk) -> None:
    # given
    dead = desk.partitions[0].dead
    bare = f"0:{desk.redis.xadd(dead, {'x': b'y'}).decode()}"
    fields: dict[Any, Any] = {b"job": encode_job(job()), b"stream": b"\xff", b"code": b"\xff"}
    strange = f"0:{desk.redis.xadd(dead, fields).decode()}"
    # then
    assert desk.letters.get(bare).job == b""
    for handle in (bare, strange):
        with pytest.raises(MalformedMessage, match="no job stream"):
            desk.letters.retry(handle)
    assert desk.redis.xlen(dead) == 2


def test_a_handle_that_names_nothing(desk: Desk) -> None:
    for wrong in ("", "5-0", "0:5", "0:5-0-1", "0:5-x", "\u0660:5-0", "0:5-0\n", f"0:{2**64}-0"):
        with pytest.raises(InvalidParameter, match="handle"):
            desk.letters.get(wrong)
    with pytest.raises(InvalidParameter, match="2 partitions"):
        desk.letters.get("2:5-0")
    for act in (desk.letters.get, desk.letters.retry):
        with pytest.raises(DeadLetterNotFound, match="0:5-0"):
            act("0:5-0")


def test_purge_deletes_what_it_is_told_to(desk: Desk) -> None:
    # given
    now = int(time.time() * 1000)
    desk.give_up(job(), entry=f"{now - 9 * DAY_MS}-0")
    older = desk.give_up(job(), entry=f"{now - 8 * DAY_MS}-0")
    other = desk.give_up(b"", code="other", partition=1, entry=f"{now - 8 * DAY_MS}-1")
    new = desk.give_up(job())
    newer = desk.give_up(job())
    # then
    assert desk.letters.purge([newer, newer, "0:5-0"]) == 1
    assert desk.letters.purge_all(code="crash_loop", older_than_s=8.5 * 86_400) == 1
    assert [x.handle for x in desk.letters.list()] == [new, other, older]
    assert desk.letters.purge_all(older_than_s=7 * 86_400) == 2
    assert desk.letters.purge_all(code="other") == 0
    assert desk.letters.purge_all() == 1
    assert list(desk.letters.list()) == []
