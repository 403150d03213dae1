"""Tokens that were delivered and that Redis has lost: they come again, in other portions, and come
to nobody twice. The workers here draw how many tokens each of their events has."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import CancelledEvent, Client, Job, ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import at_once, wait_until
from tests.support.echo import echoed_text, serving
from tests.support.event_stream import event_stream
from tests.support.gateway import running_gateway
from tests.support.listeners import Listeners, assert_echo, assert_echo_until
from tests.support.sentinel import LocalSentinel

pytestmark = needs_redis_server

PROMPT = "the quick brown fox"
DELTA = "response.output_text.delta"
PROGRAM = ("tests.support.portions",)
WORKER: dict[str, Any] = {"program": PROGRAM, "min_step_s": 0.01, "redis_timeout_s": 1}


def settings(url: str, queue: str) -> ProducerSettings:
    return ProducerSettings(
        redis_url=url, queue=queue, poll_interval_s=0.5, redis_timeout_s=1, reconnect_timeout_s=60
    )


def delivered(listeners: Listeners) -> int:
    """Tokens that both have."""
    assert not listeners.errors, listeners.errors
    return min(events[-1].cursor if events else 0 for events in listeners.seen)


@pytest.fixture
def client(own_redis: EmbeddedBroker, queue: str) -> Iterator[Client]:
    with Client(settings(own_redis.url, queue)) as client:
        yield client


def test_what_is_put_back_again_and_again_comes_to_nobody_twice(
    own_redis: EmbeddedBroker, admin: redis.Redis, client: Client, queue: str
) -> None:
    # given
    partition = Partition(queue)
    with serving("portions", own_redis.url, queue=queue, **WORKER):
        job = client.submit(PROMPT, max_new_tokens=100_000)
        listeners = Listeners(client.settings, job.id)
        keys = [partition.state(job.id), partition.tokens(job.id)]
        for _ in range(6):
            wait_until(lambda: delivered(listeners) >= 10)
            known = at_once(admin, keys)
            seen = delivered(listeners)
            wait_until(lambda seen=seen: delivered(listeners) >= seen + 25)
            # when: Redis knows no more than before
            with admin.pipeline(transaction=True) as heir:
                for key, value in zip(keys, known, strict=True):
                    heir.restore(key, 0, value, replace=True)
                heir.execute()
            # then
            seen = delivered(listeners)
            wait_until(lambda seen=seen: delivered(listeners) >= seen + 10)
        job.cancel()
        events = listeners.events()
        assert_echo_until(events, PROMPT, CancelledEvent)
        assert any(event.cursor - event.index > 1 for event in events)


def test_a_client_resumes_at_every_token_of_a_log_in_portions(
    own_redis: EmbeddedBroker, client: Client, queue: str
) -> None:
    # given
    with serving("portions", own_redis.url, queue=queue, **WORKER):
        job = client.submit(PROMPT, max_new_tokens=60)
        whole = list(job.stream(timeout_s=90))
    assert_echo(whole, PROMPT, 60)
    # when / then
    for cursor in range(61):
        rest = list(job.stream(cursor, timeout_s=90))
        assert [rest[0].index, rest[-1]] == [cursor, whole[-1]]
        ids = [token_id for event in rest[:-1] for token_id in event.token_ids]
        assert "".join(event.text for event in rest[:-1]) == "".join(f"{i} " for i in ids)
        assert ids == [ord(PROMPT[n % len(PROMPT)]) for n in range(cursor, 60)]


def read_stream(url: str, path: str, body: dict[str, Any], into: list[Any]) -> None:
    """The events of a stream without its end, as JSON, as they come."""
    whole = {"model": "null", "stream": True, **body}
    with event_stream("POST", f"{url}/{path}", body=whole) as (_, events):
        into.extend(event.json for event in events if event.data != "[DONE]")


def test_streams_go_on_though_redis_comes_back_with_an_older_file(queue: str) -> None:
    # given
    options = {"appendfsync": "always", "auto-aof-rewrite-percentage": "0"}
    with (
        EmbeddedBroker(fake=False, options=options) as server,
        Client(settings(server.url, queue)) as client,
        serving("portions", server.url, queue=queue, lease_s=2, **WORKER),
        running_gateway(server.url, queue) as gateway,
        ThreadPoolExecutor(2) as background,
    ):
        listeners = Listeners(client.settings, client.submit(PROMPT, max_new_tokens=400).id)
        messages = [{"role": "user", "content": PROMPT}]
        chat: list[Any] = []
        response: list[Any] = []
        chat_body = {"messages": messages, "max_tokens": 400}
        response_body = {"input": PROMPT, "max_output_tokens": 400}
        readers = [
            background.submit(read_stream, gateway.url, "chat/completions", chat_body, chat),
            background.submit(read_stream, gateway.url, "responses", response_body, response),
        ]
        wait_until(lambda: min(delivered(listeners), len(chat), len(response)) >= 20)
        with redis.Redis(port=server.port, protocol=2) as admin:
            folder = Path(str(admin.config_get("dir")["dir"]), "appendonlydir")
        older = folder.with_name("older")
        shutil.copytree(folder, older)
        seen = delivered(listeners)
        wait_until(lambda: delivered(listeners) >= seen + 50)
        # when
        server.stop()
        shutil.rmtree(folder)
        older.rename(folder)
        server.start()
        # then
        assert_echo(listeners.events(), PROMPT, 400)
        for reader in readers:
            reader.result(90)
        choices = [choice for event in chat for choice in event["choices"]]
        said = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert said == echoed_text(PROMPT, 400)
        said = "".join(event["delta"] for event in response if event["type"] == DELTA)
        assert said == echoed_text(PROMPT, 400)
        numbers = [event["sequence_number"] for event in response]
        assert numbers == list(range(len(response)))


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalSentinel]:
    with LocalSentinel({"repl-diskless-sync-delay": "0"}) as servers:
        yield servers


def test_a_replica_that_lagged_is_promoted_in_mid_sentence(
    servers: LocalSentinel, queue: str
) -> None:
    # given
    given = settings(servers.url, queue)
    with serving("portions", servers.url, queue=queue, lease_s=2, **WORKER), Client(given) as own:
        job = own.submit(PROMPT, max_new_tokens=100_000)
        listeners = Listeners(given, job.id)
        wait_until(lambda: delivered(listeners) >= 20)
        # when: it knows nothing of the last tokens
        with servers.lagging():
            seen = delivered(listeners)
            wait_until(lambda: delivered(listeners) >= seen + 60)
            servers.fail_over(lossy=True)
        # then
        seen = delivered(listeners)
        assert_resumes(own.job(job.id), seen - 30)
        wait_until(lambda: delivered(listeners) >= seen + 50)
        job.cancel()
        assert_echo_until(listeners.events(), PROMPT, CancelledEvent)


def assert_resumes(job: Job, cursor: int) -> None:
    """Wherever in the forgotten part an earlier stream was."""
    with closing(job.stream(cursor, timeout_s=90)) as events:
        event = next(events)
    assert event.index == cursor
    assert event.token_ids[0] == ord(PROMPT[cursor % len(PROMPT)])
