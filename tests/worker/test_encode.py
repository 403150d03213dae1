"""Jobs whose answers are numbers: the same streams, leases and ends as all others."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis
import torch

from rose.errors import (
    DeadlineExceeded,
    InvalidParameter,
    JobCancelled,
    PromptTooLong,
    ResultTimeout,
)
from rose.protocol import FinishedEvent, Partition
from rose_producer import AsyncClient, Client, Job, Request
from roseinfer.encoders.encoder import Encoder
from tests.support.bench import wait_until
from tests.support.echo import SLOW, StartWorker, digest, has_no_jobs
from tests.support.encoders import TEXTS, save_encoder, save_reranker

#: A worker whose vectors are digests.
NULL = {"task": "embed"}


def submit(client: Client, *inputs: str | Sequence[int], **options: object) -> Job:
    return client.submit_many([Request(inputs, encode=options)])[0]


def vectors(job: Job) -> list[list[float]]:
    numbers = job.result(90).numbers
    assert numbers is not None
    return [row.tolist() for row in numbers.rows()]


def test_the_answer_is_one_event_that_can_be_read_again(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(**NULL)
    job = submit(client, "a", "hare", [7, 8])

    (event,) = job.stream(timeout_s=90)

    assert isinstance(event, FinishedEvent)
    assert (event.index, event.reason, event.prompt_tokens) == (0, "stop", 1 + 4 + len("(7, 8)"))
    assert vectors(job) == [digest("a"), digest("hare"), digest("(7, 8)")]
    assert list(job.stream(timeout_s=90)) == [event]


def test_a_client_embeds_more_than_one_event_holds(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    start_worker(**NULL)
    texts = [f"text {number}" for number in range(300)]

    found = client.embed(texts, dimensions=3, timeout_s=90)

    assert [vector.tolist() for vector in found.vectors] == [digest(text, 3) for text in texts]
    assert found.prompt_tokens == sum(map(len, texts))
    assert has_no_jobs(raw, partition)
    assert not list(raw.scan_iter(partition.state("*")))


def test_an_idempotency_key_brings_the_first_answer(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    worker = start_worker(**NULL)
    texts = [f"text {number}" for number in range(100)]

    found = [client.embed(texts, idempotency_key="k", timeout_s=90).vectors for _ in range(2)]

    assert found[0] == found[1]
    wait_until(lambda: worker.metrics()["rose_encoded_inputs_total"] >= 100)
    assert worker.metrics()["rose_encoded_inputs_total"] == 100


def test_the_async_client_embeds(broker: object, client: Client, start_worker: StartWorker) -> None:
    start_worker(**NULL)

    async def embed() -> list[list[float]]:
        async with AsyncClient(client.settings) as own:
            return [vector.tolist() for vector in (await own.embed(["a", "b"])).vectors]

    assert asyncio.run(embed()) == [digest("a"), digest("b")]


def test_a_killed_workers_jobs_are_answered_once(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given: a worker in the midst of some jobs, and more that wait
    worker = start_worker(max_batch_size=4, **NULL, **SLOW)
    texts = [[f"{job} {number}" for number in range(20)] for job in range(12)]
    jobs = client.submit_many([Request(tuple(own), encode={}) for own in texts])
    wait_until(lambda: jobs[3].status().status == "running")
    # when
    worker.signal(signal.SIGKILL)
    start_worker(max_batch_size=4, **NULL)
    # then
    for own, job in zip(texts, jobs, strict=True):
        (event,) = job.stream(timeout_s=90)
        assert isinstance(event, FinishedEvent)
        assert vectors(job) == [digest(text) for text in own]
    assert jobs[0].status().epoch > 1
    assert has_no_jobs(raw, partition)
    assert {raw.xlen(partition.tokens(job.id)) for job in jobs} == {1}


def test_a_job_may_be_cancelled_or_miss_its_deadline(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(**NULL, min_step_s=0.2)
    many = tuple("abc" for _ in range(2000))
    cancelled, late = client.submit_many(
        [Request(many, encode={}), Request(many, encode={}, deadline_s=0.5)]
    )
    wait_until(lambda: cancelled.status().status == "running")

    assert cancelled.cancel()

    with pytest.raises(JobCancelled):
        cancelled.result(90)
    with pytest.raises(DeadlineExceeded):
        late.result(90)


def test_a_cancel_whose_message_is_lost_is_noticed(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    start_worker(**NULL, min_step_s=0.2)
    (job,) = client.submit_many([Request(("abc",) * 2000, encode={})])
    wait_until(lambda: job.status().status == "running")

    raw.hset(partition.state(job.id), "cancel", "1")

    with pytest.raises(JobCancelled):
        job.result(90)


def test_a_client_that_gives_up_deletes_its_jobs(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    start_worker(**NULL, min_step_s=0.2)

    with pytest.raises(ResultTimeout):
        client.embed(["abc"] * 200, timeout_s=0.5)

    wait_until(lambda: has_no_jobs(raw, partition))


@pytest.mark.parametrize(
    ("options", "inputs", "message"),
    [
        ({"dimensions": 9}, ("a",), "dimensions: a vector of null-encoder has 8, so not 9"),
        ({"task": "score", "queries": ("q",)}, ("a",), r"embeds texts, .* scores texts"),
    ],
)
def test_what_the_model_cannot_do_is_refused(
    client: Client,
    start_worker: StartWorker,
    options: dict[str, object],
    inputs: tuple[str, ...],
    message: str,
) -> None:
    start_worker(**NULL)

    with pytest.raises(InvalidParameter, match=message):
        submit(client, *inputs, **options).result(90)


def test_a_text_that_is_too_long_is_refused_or_cut(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(**NULL, max_context=5)

    with pytest.raises(PromptTooLong):
        client.embed(["123456"], timeout_s=90)
    with pytest.raises(PromptTooLong):
        client.embed(["1", "123456"], timeout_s=90)
    (vector,) = client.embed(["123456"], truncate=True, timeout_s=90).vectors
    assert vector.tolist() == digest("12345")


def test_a_model_that_generates_refuses_to_embed(client: Client, start_worker: StartWorker) -> None:
    start_worker()

    with pytest.raises(InvalidParameter, match=r"null, generates text, and .* embeds texts"):
        client.embed(["a"], timeout_s=90)


def test_a_model_that_embeds_refuses_to_generate(client: Client, start_worker: StartWorker) -> None:
    start_worker(**NULL)

    with pytest.raises(InvalidParameter, match=r"embeds texts, and .* generates text"):
        client.submit("a").result(90)
    with pytest.raises(InvalidParameter, match=r"embeds texts, and .* generates text"):
        client.submit_many([Request([1, 2], prompt_only="ids")])[0].result(90)


def test_an_encoder_announces_itself(client: Client, start_worker: StartWorker) -> None:
    start_worker(**NULL)

    served = client.model()

    assert served is not None
    assert (served.task, served.dimensions, served.chat) == ("embed", 8, False)


@pytest.mark.parametrize(
    "inputs", ["one text", [], [1, 2], None], ids=["text", "none", "ids", "nothing"]
)
def test_inputs_must_be_several(client: Client, inputs: object) -> None:
    with pytest.raises(InvalidParameter, match="inputs: must be a list"):
        client.embed(inputs)  # type: ignore[arg-type]


def test_a_text_that_takes_too_much_is_refused_and_costs_no_other(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    # given
    folder = save_encoder(tmp_path / "tiny", "bert", normalize=True)
    start_worker(engine="rose", model=str(folder), device="cpu")
    # when: a token for each character
    with pytest.raises(InvalidParameter, match=r"model's tokenizer takes more than .* for it"):
        client.embed(["a" * 1_000_000], truncate=True, timeout_s=90)
    # then: what is long, but not too long, is the model's
    texts = [f"{number} the hare, the tortoise" * 10 for number in range(40)]
    found = client.embed(texts, truncate=True, timeout_s=90).vectors
    encoder = Encoder(str(folder), "embed")
    expected = encoder.encode(encoder.tokenizer.tokenize(texts, truncate=True))
    torch.testing.assert_close(torch.tensor(found), expected, atol=2e-6, rtol=0)
    with pytest.raises(PromptTooLong, match="maximum context"):
        client.embed(texts, timeout_s=90)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_worker_scores_with_a_model(
    client: Client, start_worker: StartWorker, tmp_path: Path, kind: str
) -> None:
    # given: a model that tells the first text from the second, and texts that a child tokenizes
    if kind == "encoder":
        folder = save_encoder(tmp_path / "tiny", "bert", labels=1)
    else:
        folder = save_reranker(tmp_path / "tiny")
    start_worker(engine="rose", model=str(folder), device="cpu")
    texts = [f"{number} the hare, the tortoise" * 3 for number in range(40)]
    # when
    found = client.score("where is the hare?", texts, timeout_s=90)
    # then
    encoder = Encoder(str(folder), "score")
    pairs = [("where is the hare?", text) for text in texts]
    expected = encoder.encode(encoder.tokenizer.tokenize_pairs(pairs))[:, 0]
    torch.testing.assert_close(torch.tensor(found), expected, atol=2e-6, rtol=0)


def test_a_worker_embeds_with_a_model(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    prompts = {"query": "find: "}
    folder = save_encoder(tmp_path / "tiny", "qwen3", normalize=True, prompts=prompts)
    worker = start_worker(engine="rose", model=str(folder), device="cpu", max_step_tokens=100)
    long = "0123456789" * 13

    found = client.embed(TEXTS, timeout_s=90).vectors
    asked = client.embed([TEXTS[0]], prompt_name="query", dimensions=7, timeout_s=90).vectors
    cut = client.embed([long], truncate=True, timeout_s=90).vectors
    with pytest.raises(PromptTooLong, match="132"):
        client.embed([long], timeout_s=90)

    encoder = Encoder(str(folder), "embed")
    expected = encoder.encode(encoder.tokenizer.tokenize(TEXTS))
    torch.testing.assert_close(torch.tensor(found), expected, atol=2e-6, rtol=0)
    own = encoder.encode(encoder.tokenizer.tokenize([TEXTS[0]], prompt_name="query"))
    shorter = encoder.shortened(own, 7)
    torch.testing.assert_close(torch.tensor(asked), shorter, atol=2e-6, rtol=0)
    own = encoder.encode(encoder.tokenizer.tokenize([long], truncate=True))
    torch.testing.assert_close(torch.tensor(cut), own, atol=2e-6, rtol=0)
    served = client.model()
    assert served is not None
    assert (served.name, served.dimensions, served.context_tokens) == ("tiny", 48, 128)
    assert worker.metrics()["rose_encoded_inputs_total"] == len(TEXTS) + 2
