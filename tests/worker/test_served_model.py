"""What real workers say of their model, and what a client learns of it."""

import asyncio

import pytest
import redis
from pydantic import SecretStr

from rose.errors import MalformedMessage
from rose.protocol import Partition
from rose.protocol.vocabulary import decode_vocabulary
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from rose_worker.broker import Broker
from rose_worker.engine import ModelInfo
from rose_worker.null_engine import NullEngine
from rose_worker.settings import WorkerSettings
from rose_worker.tasks import cancel_all
from rose_worker.vocabulary import VocabularyKeeper
from tests.conftest import needs_redis_server
from tests.support.bench import create_groups, until, wait_until
from tests.support.echo import StartWorker
from tests.support.troubles import out_of_memory

TOKENS = [b"a", b"\xff", b" the"]


class Speller(NullEngine):
    """An engine with a vocabulary, which is asked for it seldom."""

    def __init__(self, settings: WorkerSettings, tokens: list[bytes] | None) -> None:
        super().__init__(settings)
        self.model = ModelInfo("m", 9, None, "cpu", "none", fingerprint="0a", has_vocabulary=True)
        self.tokens = tokens
        self.asked = 0

    def vocabulary(self) -> list[bytes] | None:  # type: ignore[override]
        self.asked += 1
        return self.tokens


def test_a_client_learns_what_the_workers_serve(client: Client, start_worker: StartWorker) -> None:
    # given
    assert client.model() is None
    start_worker(engine="rose", device="cpu", torch_threads=1)
    # when
    model = client.model()
    # then
    assert model is not None
    assert (model.chat, model.tool_format, model.workers) == (True, "generic", 1)
    assert model.template_variables == ()
    assert model.context_tokens == client.queue_status().context_tokens
    assert len(model.fingerprint) == 16
    # and the bytes of its tokens, which join to the text that was generated
    wait_until(lambda: client.vocabulary(model) is not None)
    vocabulary = client.vocabulary(model)
    assert vocabulary is not None
    result = client.submit("Once upon a time", max_new_tokens=30, ignore_eos=True).result(90)
    spoken = b"".join(vocabulary[token] for token in result.token_ids).decode()
    assert spoken.replace("<|end|>", "") == result.text
    assert vocabulary[0] == b"<|end|>"


def test_the_null_engine_has_no_vocabulary(client: Client, start_worker: StartWorker) -> None:
    # given
    start_worker()
    model = client.model()
    # then
    assert model is not None
    assert (model.name, model.fingerprint, model.chat) == ("null", "null", True)
    assert (model.engine, model.dtype, model.adapters) == ("null", "none", ())
    assert client.vocabulary(model) is None


def test_a_model_that_an_older_worker_announced_may_chat(
    client: Client, raw: redis.Redis, partition: Partition
) -> None:
    # given
    create_groups(raw, partition)
    raw.hset(partition.model, mapping={"name": "m", "context_tokens": 7})
    # when
    model = client.model()
    # then
    assert model is not None
    assert (model.fingerprint, model.context_tokens, model.chat) == ("", 7, True)
    assert (model.tool_format, model.engine, model.adapters, model.workers) == ("", "", (), 0)
    assert client.vocabulary(model) is None
    # and only where it is said that it cannot, it cannot
    raw.hset(partition.model, "chat", "0")
    assert not client.model().chat


def test_a_vocabulary_that_somebody_else_wrote_is_told(
    client: Client, raw: redis.Redis, partition: Partition
) -> None:
    # given
    create_groups(raw, partition)
    raw.hset(partition.model, mapping={"name": "m", "fingerprint": "0a"})
    raw.set(partition.vocabulary("0a"), b"garbage")
    # then
    with pytest.raises(MalformedMessage, match="not a vocabulary"):
        client.vocabulary(client.model())


@needs_redis_server
async def test_a_vocabulary_is_stored_where_it_is_lacking_and_there_is_room(
    own_redis: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given: two partitions, and a Redis at its limit
    settings = WorkerSettings(redis_url=SecretStr(own_redis.url), queue="q", partitions=2)
    engine, broker = Speller(settings, TOKENS), Broker(settings, "w")
    keeper = VocabularyKeeper(broker, engine)
    first, second = broker.partitions
    await broker.start()
    for partition in broker.partitions:
        assert (await broker.announce(partition, engine.model, "join")).lacks_vocabulary
    running = asyncio.create_task(keeper.run())
    with out_of_memory(admin):
        # when
        keeper.lacks(first)
        await until(lambda: engine.asked == 1 and not keeper._lacking)
        # then: it goes on without
        assert not admin.exists(first.vocabulary("0a"))
    # and stores it at the next announcement
    keeper.lacks(first)
    await until(lambda: admin.exists(first.vocabulary("0a")))
    assert decode_vocabulary(admin.get(first.vocabulary("0a"))) == tuple(TOKENS)
    assert not (await broker.announce(first, engine.model, "keep")).lacks_vocabulary
    # and what is there stays
    admin.set(second.vocabulary("0a"), "another worker's")
    keeper.lacks(second)
    await until(lambda: engine.asked == 3 and not keeper._lacking)
    assert admin.get(second.vocabulary("0a")) == b"another worker's"
    assert not running.done()
    await cancel_all([running])
    await broker.close()


async def test_who_cannot_spell_is_not_asked_again(broker: EmbeddedBroker, queue: str) -> None:
    # given
    settings = WorkerSettings(redis_url=SecretStr(broker.url), queue=queue)
    engine, calls = Speller(settings, None), Broker(settings, "w")
    keeper = VocabularyKeeper(calls, engine)
    running = asyncio.create_task(keeper.run())
    # when
    keeper.lacks(calls.partitions[0])
    await until(lambda: not keeper._has_one)
    keeper.lacks(calls.partitions[0])
    # then
    assert engine.asked == 1
    assert not keeper._wake.is_set()
    assert not running.done()
    await cancel_all([running])
    await calls.close()
