"""Dead letters: what they keep, whom they tell, and how much room they take."""

from rose.protocol import GROUP, EntryKey, Priority
from rose_producer import FailedEvent
from tests.support.bench import Bench, dead_letter, token


def test_a_dead_letter_keeps_the_bytes_and_tells_the_subscriber(bench: Bench) -> None:
    # given
    stream = bench.partition.jobs(Priority.HIGH)
    entry = bench.redis.xadd(stream, {"job": b"garbage"}).decode()
    bench.redis.xreadgroup(GROUP, "w", {stream: ">"})
    failed = FailedEvent(index=0, code="malformed_message", message="no")
    # when
    call = dead_letter(bench, EntryKey(stream, entry), "abc", failed)
    assert bench.call(call) == b"DEAD"
    assert bench.call(call) == b"NOT_OWNER"
    # then
    ((_, letter),) = bench.redis.xrange(bench.partition.dead)
    assert (letter[b"job"], letter[b"code"]) == (b"garbage", b"malformed_message")
    assert 0 < bench.redis.ttl(bench.partition.dead) <= 60
    assert list(bench.client.job("abc").stream()) == [failed]
    assert bench.lengths() == [0, 0, 0]


def test_dead_letters_take_no_more_than_so_many_bytes(bench: Bench) -> None:
    # given
    stream, dead = bench.partition.jobs(Priority.HIGH), bench.partition.dead
    failed = FailedEvent(index=0, code="malformed_message", message="no")

    def give_up(raw: bytes) -> list[bytes]:
        """The jobs that are kept then."""
        entry = bench.redis.xadd(stream, {"job": raw}).decode()
        bench.redis.xreadgroup(GROUP, "w", {stream: ">"})
        call = dead_letter(bench, EntryKey(stream, entry), "abc", failed, raw, keep_bytes=10_000)
        assert bench.call(call) == b"DEAD"
        return [letter[b"job"] for _, letter in bench.redis.xrange(dead)]

    small, large, huge = b"s" * 1000, b"l" * 6000, b"h" * 20_000
    # when / then: the oldest go, as many as need be
    for count in range(1, 5):
        assert give_up(small) == [small] * count
    assert give_up(large) == [small] * 2 + [large]
    # the last one is always there
    assert give_up(huge) == [huge]
    assert give_up(small) == [small]
    # who looks after them may begin anew
    bench.redis.delete(dead)
    assert give_up(large) == [large]


def test_an_entry_with_somebody_elses_id_does_not_end_their_job(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    # the same id in another stream, as can happen
    stream, entry = bench.partition.jobs(Priority.HIGH), lease.entry.id
    bench.redis.xadd(stream, {"job": b"garbage"}, id=entry)
    bench.redis.xreadgroup(GROUP, "w", {stream: ">"})
    failed = FailedEvent(index=0, code="x", message="m")
    # when
    bench.call(dead_letter(bench, EntryKey(stream, entry), job.id, failed))
    # then
    assert bench.append(lease, token(0)) == ["OK"]
