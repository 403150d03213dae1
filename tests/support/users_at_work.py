"""All that the shipped users ever do, each through a proxy of its own."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import httpx2 as httpx
import pytest
import redis
from openai import AuthenticationError, ConflictError, OpenAI, RateLimitError
from pydantic import SecretStr

from rose import transport
from rose.errors import DeadlineExceeded, JobCancelled, JobFailed
from rose.protocol import GROUP, JobSpec, Partition, Priority, encode_job
from rose.protocol.keys import BulkKeys
from rose.protocol.tenants import TenantLimits
from rose.protocol.vocabulary import encode_vocabulary
from rose.sampling import SamplingParams
from rose_cli.local.services import WorkerProcess
from rose_gateway.access.keys import open_keys
from rose_gateway.settings import KeyLimits
from rose_gateway.storage.webhook_repository import MAX_DEAD, WebhookRepository
from rose_producer import AsyncClient, Client, Job, ProducerSettings
from rose_producer.dead_letters import DeadLetters
from rose_producer.tenants import Tenants
from rose_worker.broker import Broker
from rose_worker.engine import ModelInfo
from rose_worker.settings import WorkerSettings
from tests.support.api_keys import bearer
from tests.support.batch_lines import completion, raw_line
from tests.support.bench import until, wait_until
from tests.support.echo import SLOW, serving
from tests.support.gateway import gateway_metrics, running_gateway
from tests.support.keys import one_of_a_kind
from tests.support.listeners import Listeners, assert_echo
from tests.support.proxy import Proxy
from tests.support.redis_users import PASSWORDS
from tests.support.webhook_receiver import LOOPBACK, Receiver, receiving

QUEUE = "guarded"
LIMITS = KeyLimits(
    requests_per_minute=1000,
    tokens_per_minute=10**6,
    reads_per_minute=1000,
    max_jobs=1,
    max_stored_bytes=10**6,
    max_files=100,
    max_unfinished_batches=2,
)
PARTITION = Partition(QUEUE)
#: One running job, and limits that nobody here reaches.
TENANT = TenantLimits(2, 1, 1000, 10**9, 10**9, 10**6, 10**9)
_ENDED = ("completed", "cancelled", "failed", "expired")
USERS = ("producer", "worker", "gateway", "scaler", "operator")


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
        odd = submit_oddly(admin, client)
        with serving("first", by_worker, **slow) as victim:
            see_them_end(*odd)
            set_tenants(proxies["operator"])
            spoil_logs(admin, client)
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
            flush_scripts(admin, client)
            use_tenants(client, proxies["operator"], [last, idle])
            delete_jobs(client, moving)
            asyncio.run(use_async(by_producer))
            secret = asyncio.run(look_after_keys(proxies["operator"]))
            asyncio.run(tell_webhooks(admin, proxies["operator"], proxies["gateway"], secret))
            ask_the_gateway(proxies["gateway"], secret)
            asyncio.run(keep_vocabulary(admin, by_worker))
            look_after_dead_letters(proxies["operator"])
            assert (last.terminate(), idle.terminate()) == (0, 0)
            return logs + last.log + idle.log


def submit_oddly(admin: redis.Redis, client: Client) -> tuple[Sequence[Job], Job]:
    """Before any worker comes. Returns jobs that will end well, and one whose log is spoilt."""
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
    return (late, client.job("0-raw")), spoilt


def see_them_end(well: Sequence[Job], spoilt: Job) -> None:
    wait_until(lambda: spoilt.status().status == "failed")
    for job in well:
        assert job.result(90).finish_reason == "length"
    with pytest.raises(JobFailed, match="somebody else"):
        spoilt.result(90)


def spoil_logs(admin: redis.Redis, client: Client) -> None:
    for job_id, tenant in (("0-plain", ""), ("0-mail", "mail")):
        admin.set(PARTITION.tokens(job_id), "not a log")
        client.submit("z", job_id=job_id, max_new_tokens=5, tenant=tenant)
        wait_until(lambda: client.job(job_id).status().status == "failed")  # noqa: B023


def flush_scripts(admin: redis.Redis, client: Client) -> None:
    """Before a job is submitted, and while it runs."""
    admin.script_flush()
    running = client.submit("x", max_new_tokens=100_000)
    wait_until(lambda: running.status().tokens > 2)
    admin.script_flush()
    assert running.cancel()
    with pytest.raises(JobCancelled):
        running.result(90)


def delete_jobs(client: Client, ended: Job) -> None:
    """One that has ended, and one that runs."""
    assert ended.delete()
    assert not ended.delete()
    unwanted = client.submit("x", idempotency_key="k", max_new_tokens=100_000, record=b"r")
    assert unwanted.delete()
    wait_until(lambda: unwanted.status().status == "cancelled")


def set_tenants(through: Proxy) -> None:
    with Tenants(settings("operator", through.port)) as tenants:
        for name in ("mail", "passing"):
            tenants.set(name, TENANT)
        assert tenants.remove("passing")
        assert list(tenants.list()) == ["mail"]
        assert tenants.top(10).count == 0
        assert tenants.show("mail").limits == TENANT


def use_tenants(client: Client, operator: Proxy, workers: Sequence[WorkerProcess]) -> None:
    """One job of a tenant runs, others wait: one is cancelled, one deleted, one is too late."""
    first = client.submit("ab", max_new_tokens=100_000, tenant="mail")
    wait_until(lambda: first.status().tokens > 0)
    waiting, unwanted = (
        client.submit("x", idempotency_key=key, tenant="mail") for key in ("one", "two")
    )
    late = client.submit("x", deadline_s=0.01, tenant="mail")
    last = client.submit("ab", max_new_tokens=3, tenant="mail")
    (mail,) = client.tenants().top
    assert (mail.name, mail.running) == ("mail", 1)
    with Tenants(settings("operator", operator.port)) as tenants:
        for old, new in (("mail", "post"), ("post", "mail")):
            assert tenants.rename(old, new) > 1
    # One of them reads the queue for all.
    wait_until(lambda: any(worker.metrics().get("rose_queue_tenants") for worker in workers))
    assert waiting.cancel()
    assert unwanted.delete()
    with pytest.raises(DeadlineExceeded):
        late.result(90)
    assert first.cancel()
    assert last.result(90).token_ids == (97, 98, 97)


async def use_async(given: ProducerSettings) -> None:
    async with AsyncClient(given) as client:
        job = await client.submit("ab", max_new_tokens=3)
        assert (await job.result(90)).token_ids == (97, 98, 97)
        assert (await job.status()).status == "finished"
        assert not await job.cancel()
        assert (await client.queue_status()).dead_letters == 3
        model = await client.model()
        assert model is not None
        assert await client.vocabulary(model) is None
        assert QUEUE in {status.queue for status in await client.queues()}


async def keep_vocabulary(admin: redis.Redis, user_url: str) -> None:
    """What a worker does whose engine has one, in a queue whose keys are overwritten."""
    spelled = WorkerSettings(redis_url=SecretStr(user_url), queue="spelled")
    model = ModelInfo("m", 9, None, "cpu", "none", fingerprint="0a", has_vocabulary=True)
    broker = Broker(spelled, "speller")
    for key in one_of_a_kind(broker.partitions[0]):
        admin.set(key, "somebody else's")
    try:
        await broker.start()
        (partition,) = broker.partitions
        assert (await broker.announce(partition, model, "join")).lacks_vocabulary
        await broker.store_vocabulary(partition, encode_vocabulary([b"a"]))
        assert not (await broker.announce(partition, model, "keep")).lacks_vocabulary
        await broker.leave(partition)
    finally:
        await broker.close()


async def look_after_keys(through: Proxy) -> str:
    """Returns a key's secret."""
    keys, client = open_keys(settings("operator", through.port))
    try:
        key, secret = await keys.create("mine", LIMITS, "mail")
        other, _ = await keys.create("other", KeyLimits())
        await keys.revoke(other.id)
        assert {one.id for one in await keys.list()} == {key.id, other.id}
    finally:
        await client.aclose()
    return secret


async def tell_webhooks(admin: redis.Redis, operator: Proxy, gateway: Proxy, secret: str) -> None:
    """One that receives, and one that never does."""
    client = transport.AsyncRedisClient(settings("operator", operator.port))
    webhooks = WebhookRepository(client)
    try:
        with receiving() as receiver, receiving() as broken:
            broken.answers = lambda _: (500, {})
            good, _ = await webhooks.endpoints.add(receiver.url)
            bad, _ = await webhooks.endpoints.add(broken.url)
            await webhooks.endpoints.rotate(good.id, 60)
            old = {f"evt_{number}": number for number in range(MAX_DEAD)}
            admin.zadd(BulkKeys.webhook_dead(bad.id), old)
            await asyncio.to_thread(_end_for_webhooks, gateway, secret, receiver, broken)
        await until(lambda: not admin.exists(BulkKeys.webhook_due(good.id)))
        assert admin.zcard(BulkKeys.webhook_dead(bad.id)) == MAX_DEAD
        (event,) = await webhooks.dead(bad.id, 1)
        assert await webhooks.resend(bad.id, [event.event.id]) == 1
        assert (await webhooks.backlog(bad.id)).undelivered == 1
        assert await webhooks.last_failure(bad.id) is None
        for endpoint in (good, bad):
            await webhooks.endpoints.remove(endpoint.id)
    finally:
        await client.aclose()


def _end_for_webhooks(through: Proxy, secret: str, receiver: Receiver, broken: Receiver) -> None:
    """A response, and a batch that has no file any more."""
    place: dict[str, Any] = {"webhook_networks": LOOPBACK, "webhook_give_up_s": 0}
    with (
        running_gateway(url("gateway", through.port), QUEUE, **place) as gateway,
        OpenAI(base_url=gateway.url, api_key=secret, max_retries=0) as client,
    ):
        (model,) = client.models.list()
        asked: dict[str, Any] = {"model": model.id, "input": "ab", "max_output_tokens": 3}
        response = client.responses.create(**asked, background=True)
        source = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
        client.batches.create(
            input_file_id=source.id, endpoint="/v1/completions", completion_window="24h"
        )
        wait_until(lambda: len(receiver.received) == len(broken.received) == 2)
        for file in client.files.list():
            client.files.delete(file.id)
        client.responses.delete(response.id)
        wait_until(lambda: gateway_metrics(gateway)["rose_gateway_undelivered_webhooks"] == 0)


def ask_the_gateway(through: Proxy, secret: str) -> None:
    """All that its clients can ask for."""
    place: dict[str, Any] = {"max_queued_tokens": 10**9, "poll_interval_s": 0.5}
    with Client(settings("gateway", through.port)) as asking:
        assert QUEUE in {status.queue for status in asking.queues()}
        assert asking.submit("ab", max_new_tokens=1).result(90).token_ids == (97,)  # nobody's
        assert "mail" not in [tenant.name for tenant in asking.tenants().top]
    with (
        running_gateway(url("gateway", through.port), QUEUE, **place) as gateway,
        OpenAI(base_url=gateway.url, api_key=secret, max_retries=0) as client,
    ):
        with pytest.raises(AuthenticationError):
            client.with_options(api_key="not a key").models.list()
        (model,) = client.models.list()
        asked: dict[str, Any] = {"model": model.id, "input": "ab", "max_output_tokens": 3}
        again = {"Idempotency-Key": "k"}
        first = client.responses.create(**asked, extra_headers=again)
        assert client.responses.create(**asked, extra_headers=again).id == first.id
        assert client.responses.retrieve(first.id).output_text == first.output_text
        listed = f"{gateway.url}/jobs"
        assert len(httpx.get(listed, headers=bearer(secret), timeout=90).json()["data"]) == 1
        second = client.responses.create(**asked, previous_response_id=first.id)
        third = client.responses.create(**asked, previous_response_id=second.id)
        for response in (first, third, second):
            client.responses.delete(response.id)
        assert httpx.get(listed, headers=bearer(secret), timeout=90).json()["data"] == []
        long = asked | {"max_output_tokens": 100_000}
        background = client.responses.create(**long, background=True)
        events = client.responses.retrieve(background.id, stream=True)
        assert next(iter(events)).type == "response.created"
        with pytest.raises(RateLimitError, match="jobs at once"):
            client.responses.create(**long, background=True)
        assert client.responses.cancel(background.id).status == "cancelled"
        events.close()
        chat: Any = {"messages": [{"role": "user", "content": "ab"}], "max_completion_tokens": 3}
        told = client.chat.completions.create(model=model.id, **chat)
        assert told.choices[0].finish_reason == "length"
        _run_batches(client, model.id)
        assert gateway.http("/readyz") is not None


def _run_batches(client: OpenAI, model: str) -> None:
    line = raw_line("a", completion("ab") | {"model": model})
    source = client.files.create(file=("in.jsonl", line), purpose="batch")
    assert [file.id for file in client.files.list(purpose="batch", order="asc")] == [source.id]
    asked: dict[str, Any] = {"input_file_id": source.id, "endpoint": "/v1/completions"}
    batches = [client.batches.create(**asked, completion_window="24h") for _ in range(2)]
    with contextlib.suppress(ConflictError):  # it may have ended
        client.batches.cancel(batches[0].id)
    wait_until(lambda: all(batch.status in _ENDED for batch in client.batches.list()))
    last = client.batches.create(**asked, completion_window="24h")
    wait_until(lambda: client.batches.retrieve(last.id).status in _ENDED)
    done = client.batches.retrieve(batches[1].id)
    assert done.status == "completed"
    assert client.files.content(done.output_file_id or "").content.count(b"\n") == 1
    assert client.files.delete(source.id).deleted
    left = [file.id for file in client.files.list()]
    assert source.id not in left
    for file_id in left:
        client.files.delete(file_id)


def until_finished(job: Job) -> None:
    wait_until(lambda: job.status().status == "finished")


def look_after_dead_letters(through: Proxy) -> None:
    given = settings("operator", through.port)
    with DeadLetters(given) as letters, Client(given) as client:
        of_tenant, plain, spoilt = letters.list()
        assert (of_tenant.job_id, plain.job_id) == ("0-mail", "0-plain")
        through.swallow = b"\r\nEVAL\r\n"  # so that the call is repeated
        for letter in (plain, of_tenant):
            again = client.job(letters.retry(letter.handle).new_id)
            until_finished(again)
        assert client.queue_status().dead_letters == 1
        assert QUEUE in {status.queue for status in client.queues()}
        assert letters.purge([spoilt.handle]) == 1
        assert letters.purge_all() == 0


def scale(through: Proxy) -> None:
    with redis.Redis.from_url(url("scaler", through.port), protocol=2) as scaler:
        # As KEDA's trigger `redis` does, which takes any kind of key.
        ready = PARTITION.load.removesuffix("load") + "shares:ready"
        kind = "local kind = redis.call('type', KEYS[1]).ok "
        count = "return redis.call(kind == 'zset' and 'zcard' or 'llen', KEYS[1])"
        assert scaler.eval(kind + count, 1, ready) == 0
        for stream in PARTITION.all_streams:
            (group,) = scaler.xinfo_groups(stream)
            assert group["lag"] == 0
            assert scaler.xpending(stream, GROUP)["pending"] == 0
            assert scaler.xlen(stream) == 0
