"""A line is processed by the endpoints of HTTP until it has an answer. The null engine echoes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
import redis

from rose.errors import JobNotFound
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_gateway.access.authentication import Caller, RequestContext, in_request
from rose_gateway.answers.endpoint import callers_key, lines_key
from rose_gateway.batches.line import Answer, Line
from rose_gateway.batches.line_processor import CancellationToken, LineProcessor
from rose_gateway.services import Services
from rose_gateway.settings import KeyLimits
from tests.support.batch_lines import (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    completion,
    line_of,
    opened_services,
    said,
)
from tests.support.bench import until
from tests.support.echo import SLOW
from tests.support.gateway import Deployment

HI = [{"role": "user", "content": "Hi"}]

#: What differs from job to job.
_OWN = ("id", "created", "created_at", "completed_at", "service_tier")


@pytest.fixture
async def inside(deployment: Deployment) -> AsyncIterator[Services]:
    """Without HTTP, to the same queue."""
    async with opened_services(deployment.redis_url, deployment.queue) as opened:
        yield opened


async def processed(
    services: Services, line: Line, *, batch: str = "batch_1", caller: str = ""
) -> Answer:
    return await LineProcessor(services, Caller(caller), batch).process(line, CancellationToken())


def _common(body: Any) -> Any:
    """Without what belongs to one job."""
    if isinstance(body, list):
        return [_common(item) for item in body]
    if isinstance(body, dict):
        return {name: _common(value) for name, value in body.items() if name not in _OWN}
    return body


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, {"messages": HI, "max_tokens": 3, "n": 2, "metadata": {"a": "b"}}),
        (COMPLETIONS, {"prompt": ["one", "two"], "max_tokens": 3, "echo": True}),
        (RESPONSES, {"input": "Hi", "max_output_tokens": 3, "instructions": "Be kind."}),
        (CHAT, {"messages": HI, "max_tokens": 0}),
        (COMPLETIONS, {"prompt": "x", "no_such_field": 1}),
        (RESPONSES, {"input": "x", "conversation": "c"}),
        (COMPLETIONS, {"prompt": "x", "model": "no-such-model"}),
        (RESPONSES, {"input": "x", "previous_response_id": "resp_none"}),
        (COMPLETIONS, {"prompt": "x" * 40_000, "max_tokens": 1}),
    ],
)
async def test_a_line_is_answered_as_http_answers(
    deployment: Deployment, inside: Services, url: str, body: dict[str, Any], queue: str
) -> None:
    # given
    body = {"model": "null", **body}
    http = httpx2.post(f"{deployment.origin}{url}", json=body, timeout=90)
    # when
    answer = await processed(inside, line_of(7, body, url), batch=f"batch_{queue}")
    # then
    record = said(answer.record)
    assert (record["custom_id"], record["error"]) == ("line-7", None)
    assert record["response"]["status_code"] == http.status_code
    assert _common(record["response"]["body"]) == _common(http.json())
    assert answer.succeeded == (http.status_code == 200)
    assert record.get("line") == (None if answer.succeeded else 7)


async def test_a_line_that_is_no_request_is_an_error_with_its_number(inside: Services) -> None:
    # when
    answer = await processed(inside, Line(12, 99, b'{"custom_id": "x", "method": "GET"}'))
    # then
    record = said(answer.record)
    assert (answer.number, answer.custom_id, answer.succeeded) == (12, "x", False)
    assert (record["line"], record["response"]) == (12, None)
    assert record["error"]["param"] in ("method", "url", "body")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"service_tier": "priority"}, "service_tier"),
    ],
)
async def test_what_a_line_cannot_have_is_refused(
    inside: Services, fields: dict[str, Any], param: str
) -> None:
    answer = await processed(inside, line_of(1, completion("x", **fields)))

    response = said(answer.record)["response"]
    assert (response["status_code"], response["body"]["error"]["param"]) == (400, param)


async def test_whoever_asks_again_gets_the_first_one_s_job(inside: Services, queue: str) -> None:
    # given
    line, other = line_of(1, completion(queue)), line_of(2, completion(queue))
    # when
    first, again, second, of_other_batch = await asyncio.gather(
        processed(inside, line, batch=queue),
        processed(inside, line, batch=queue),
        processed(inside, other, batch=queue),
        processed(inside, line, batch=f"{queue}-2"),
    )
    # then
    ids = [said(answer.record)["response"]["body"]["id"] for answer in (first, again)]
    others = [said(answer.record)["response"]["body"]["id"] for answer in (second, of_other_batch)]
    assert first.record == again.record
    assert len({*ids, *others}) == 3


async def test_jobs_of_lines_belong_to_the_key_and_have_low_priority(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess], raw: redis.Redis
) -> None:
    # given: the model is known, and nobody works
    start_worker().kill()
    partition = Partition(queue)
    owner = Caller("0123456789ab", KeyLimits(requests_per_minute=1, max_jobs=1))
    async with opened_services(broker.url, queue) as services:
        processor = LineProcessor(services, owner, "batch_1")
        lines = [line_of(number, completion("x")) for number in (1, 2, 3)]
        # when
        asking = [
            asyncio.create_task(processor.process(line, CancellationToken())) for line in lines
        ]
        await until(lambda: raw.xlen(partition.all_jobs[2]) == 3)
        # then: rates and counts of the key are for requests that somebody waits for
        assert [raw.xlen(stream) for stream in partition.all_jobs] == [0, 0, 3]
        start_worker()
        ids = [said((await task).record)["response"]["request_id"] for task in asking]
        with in_request(RequestContext("req_test")):
            await services.jobs.find(owner, ids[0].removeprefix("req_"))
            with pytest.raises(JobNotFound):
                await services.jobs.find(Caller("ba9876543210"), ids[0].removeprefix("req_"))


async def test_jobs_of_lines_do_not_fill_their_owner_s_history(
    inside: Services, queue: str
) -> None:
    answer = await processed(inside, line_of(1, completion("x")), caller=f"owner-{queue}")

    assert answer.succeeded
    assert await inside.history.jobs(f"owner-{queue}") == []


def test_no_client_can_say_the_key_of_a_line() -> None:
    for key_id in ("", "0123456789ab"):
        line = lines_key(Caller(key_id), "batch_1", 1)
        # a client says what comes after its key's id and a zero byte
        assert not line.startswith((callers_key(Caller(), ""), callers_key(Caller(key_id), "")))


async def test_a_full_queue_costs_time_and_no_line(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given
    start_worker(max_batch_size=1, **SLOW)
    async with opened_services(broker.url, queue, max_queued_jobs=2) as services:
        processor = LineProcessor(services, Caller(), "batch_1")
        # when
        lines = [line_of(number, completion("x")) for number in range(1, 7)]
        answers = await asyncio.gather(
            *(processor.process(line, CancellationToken()) for line in lines)
        )
    # then
    assert all(answer.succeeded for answer in answers)


async def test_a_job_that_redis_has_lost_is_asked_for_again(
    own_broker: EmbeddedBroker, queue: str
) -> None:
    # given: a line whose job waits
    settings = {"queue": queue, "engine": "null"}
    with WorkerProcess("first", own_broker.url, **settings) as worker:
        worker.wait_ready()
    async with opened_services(own_broker.url, queue, poll_interval_s=0.1) as services:
        processor = LineProcessor(services, Caller(), "batch_1")
        asking = asyncio.create_task(
            processor.process(line_of(1, completion("x")), CancellationToken())
        )
        with redis.Redis(port=own_broker.port) as raw:
            await until(lambda: raw.xlen(Partition(queue).all_jobs[2]))
            # when
            raw.flushall()
        # then
        with WorkerProcess("second", own_broker.url, **settings):
            answer = await asking
    assert answer.succeeded


async def test_lines_wait_for_the_first_worker(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given: nobody knows yet which models there will be
    async with opened_services(broker.url, queue) as services:
        processor = LineProcessor(services, Caller(), "batch_1")
        asking = asyncio.create_task(
            processor.process(line_of(1, completion("x")), CancellationToken())
        )
        await until(lambda: processor.trouble == "no worker has come yet")
        # when
        start_worker()
        # then
        assert (await asking).succeeded
    assert processor.trouble == ""


async def test_what_is_not_to_be_stored_is_deleted_when_its_answer_is_written(
    inside: Services, deployment: Deployment, queue: str
) -> None:
    # given
    answer = await processed(inside, line_of(1, completion("x", store=False)), batch=queue)
    job_id = said(answer.record)["response"]["request_id"].removeprefix("req_")
    job = inside.clients[deployment.queue].job(job_id)
    assert (await job.status()).status == "finished"
    # when
    await answer.delivered()
    # then
    with pytest.raises(JobNotFound):
        await job.status()
