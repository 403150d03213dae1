"""All workers of a queue serve one model, and no model goes on with the text of another."""

import pytest

from rose.errors import JobFailed
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, ProducerSettings, Request
from rose_producer.dead_letters import DeadLetters
from tests.support.bench import wait_until
from tests.support.echo import SLOW, StartWorker, echoed, running


def test_a_worker_with_another_model_waits_until_the_others_have_left(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    first = start_worker(model="a")
    second = start_worker(model="b", ready=False)
    wait_until(lambda: "null:a" in second.log)
    # then
    assert client.queue_status().model == "null:a"
    assert list(client.queue_status().workers) == [first.name]
    # when
    assert first.terminate() == 0
    # then
    second.wait_ready()
    assert client.submit("ab", max_new_tokens=2).result(90).token_ids == echoed(b"ab", 2)
    assert client.queue_status().model == "null:b"


@pytest.mark.parametrize(("first", "second"), [(1, 2), (3, 2)])
def test_a_worker_with_another_number_of_partitions_waits_until_the_others_have_left(
    client: Client, start_worker: StartWorker, first: int, second: int
) -> None:
    # given
    one = start_worker(partitions=first)
    other = start_worker(partitions=second, ready=False)
    said = f"ROSE_PARTITIONS is {second}, and the workers of queue"
    wait_until(lambda: said in other.log)
    # then
    assert client.queue_status().partitions == first
    # when
    assert one.terminate() == 0
    # then
    other.wait_ready()
    assert client.queue_status().partitions == second


def test_a_worker_that_waits_for_others_to_leave_stops_when_asked(
    start_worker: StartWorker,
) -> None:
    # given
    start_worker(model="a")
    second = start_worker(model="b", ready=False)
    wait_until(lambda: "null:a" in second.log)
    # when / then
    assert second.terminate() == 0


def test_a_new_model_replaces_the_old_one_while_it_serves(
    client: Client,
    start_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: a job that runs with the old model
    old = start_worker(model="a", lease_s=60, **SLOW)
    begun = client.submit("abc", max_new_tokens=200)
    wait_until(lambda: running(begun, tokens=5))
    # when
    monkeypatch.setenv("ROSE_REPLACE_MODEL", "true")
    new = start_worker(model="b", lease_s=60, **SLOW)
    # then: the old one is told, and ends what it has
    wait_until(lambda: old.http("/readyz") is None)
    jobs = client.submit_many([Request("ab", sampling={"max_new_tokens": 9})] * 40)
    for job in jobs:
        job.result(90)
        assert job.status().worker == new.name
    assert begun.result(90).token_ids == echoed(b"abc", 200)
    assert begun.status().worker == old.name
    assert "takes no new jobs" in old.log


def test_a_half_written_text_of_a_model_that_has_gone_is_a_dead_letter_that_can_be_retried(
    client: Client, start_worker: StartWorker, broker: EmbeddedBroker, queue: str
) -> None:
    # given: it was handed back, and one more that has no token
    old = start_worker(model="a", max_batch_size=1, grace_s=0, **SLOW)
    begun = client.submit("abc", max_new_tokens=400)
    waiting = client.submit("de", max_new_tokens=3)
    wait_until(lambda: running(begun, tokens=5))
    assert old.terminate() == 0
    # when
    start_worker(model="b")
    # then: its subscriber sees the tokens that were written, and then the reason
    tokens, end = [], None
    for event in begun.stream(timeout_s=90):
        if event.type == "tokens":
            tokens += event.token_ids
        else:
            end = event
    assert tokens == list(echoed(b"abc", 400))[: len(tokens)]
    assert len(tokens) >= 5
    assert end is not None
    assert (end.type, end.index) == ("failed", len(tokens))
    with pytest.raises(JobFailed, match="another model") as caught:
        begun.result(90)
    assert caught.value.code == "model_changed"
    assert waiting.result(90).token_ids == echoed(b"de", 3)
    # and
    with DeadLetters(ProducerSettings(redis_url=broker.url, queue=queue)) as letters:
        (letter,) = letters.list()
        again = client.job(letters.retry(letter.handle).new_id)
    assert again.result(90).token_ids == echoed(b"abc", 400)
