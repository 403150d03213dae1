"""An idempotency key, the state and the result of a job live and expire together."""

import pytest

from rose.errors import InvalidParameter
from rose.protocol import Partition
from rose.protocol.calls import NotTaken
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from tests.support.bench import Bench, token

#: How long a key lives at most if nobody ends its job: then state and log never expire.
KEY_S = 30 * 86_400


def ttls(bench: Bench, job_id: str, key: str) -> list[int]:
    """Of state, log and key, in seconds: -1 for none, -2 where there is no such key."""
    place = bench.partition
    keys = (place.state(job_id), place.tokens(job_id), place.idempotency(key))
    return [bench.redis.ttl(name) for name in keys]


def test_a_key_does_not_expire_before_its_job_has_ended(bench: Bench) -> None:
    # given
    job = bench.client.submit("x", idempotency_key="k")
    assert ttls(bench, job.id, "k") == [-1, -2, KEY_S]
    lease = bench.start("w")
    bench.append(lease, token(0))
    assert ttls(bench, job.id, "k") == [-1, -1, KEY_S]
    # when
    bench.finish(lease, 1)
    # then: all together
    left = ttls(bench, job.id, "k")
    assert 0 < left[0] == left[1] == left[2] < KEY_S


def test_a_job_that_was_cancelled_while_it_waited_expires_once_its_entry_is_gone(
    bench: Bench,
) -> None:
    # given
    job = bench.client.submit("x", idempotency_key="k")
    job.cancel()
    assert ttls(bench, job.id, "k") == [-1, -1, KEY_S]
    assert bench.client.submit("x", idempotency_key="k").id == job.id
    # when
    assert bench.take("w", *bench.fetch("w")) is NotTaken.NOTHING_TO_DO
    # then
    left = ttls(bench, job.id, "k")
    assert 0 < left[0] == left[1] == left[2] < KEY_S


def test_a_key_whose_job_is_gone_enqueues_anew(bench: Bench) -> None:
    # given: an older worker has let the result expire, and left the key
    first = bench.client.submit("x", idempotency_key="k")
    bench.finish(bench.start("w"), 0)
    bench.redis.delete(bench.partition.state(first.id), bench.partition.tokens(first.id))
    bench.redis.persist(bench.partition.idempotency("k"))
    # when
    second = bench.client.submit("x", idempotency_key="k")
    # then: no dead handle
    assert second.id != first.id
    assert second.status().status == "queued"
    assert bench.client.submit("x", idempotency_key="k").id == second.id


def test_a_key_that_stands_for_another_job_is_left_alone(bench: Bench) -> None:
    # given: somebody has written over it
    bench.client.submit("x", idempotency_key="k")
    bench.redis.set(bench.partition.idempotency("k"), "0-other")
    # when
    bench.finish(bench.start("w"), 0)
    # then
    assert bench.redis.ttl(bench.partition.idempotency("k")) == -1


def test_an_id_and_a_key_of_different_partitions_are_refused(
    any_broker: EmbeddedBroker, queue: str
) -> None:
    with Client(redis_url=any_broker.url, queue=queue, partitions=3) as client:
        keyed = client.submit("x", idempotency_key="k")
        own = int(keyed.id[0])
        # when
        other = f"{(own + 1) % 3}-mine"
        with pytest.raises(InvalidParameter, match=rf"belongs to partition {own}") as refused:
            client.submit("x", idempotency_key="k", job_id=other)
        # then
        assert other in str(refused.value)
        assert client.submit("x", idempotency_key="k", job_id=f"{own}-mine").id == keyed.id


def test_each_producer_has_keys_of_its_own() -> None:
    # given
    place = Partition("q")
    names = [place.idempotency("order 7", user) for user in ("", "default", "a", "b", "a:b*")]
    # then: no user is the namespace of all, as before; an odd name is hashed
    assert names[0] == names[1]
    assert names[2] == names[0].replace("idempotency:", "idempotency:a:")
    assert len(set(names)) == 4
    assert "*" not in names[4]


@pytest.mark.parametrize("url", ["redis://al%20ice:pw@h:1/0", "redis://h/0?username=al+ice"])
def test_the_producer_is_the_user_of_the_url(url: str) -> None:
    with Client(redis_url=url) as client:
        assert client.settings.redis_user == "al ice"


def test_a_cancel_that_comes_too_late_is_no_job(bench: Bench) -> None:
    # given: protocol.md's plain cancel of an id whose job has expired
    bench.redis.hset(bench.partition.state("0-mine"), "cancel", "1")
    # when
    job = bench.client.submit("x", job_id="0-mine")
    # then: it is enqueued, and not cancelled
    assert job.id == "0-mine"
    assert bench.lengths() == [0, 1, 0]
    lease = bench.start("w")
    assert bench.append(lease, token(0)) == ["OK"]
    assert not job.status().cancel_requested
