"""POST /v1/embeddings of a running gateway. The null encoder's vectors are digests."""

import base64
import json
from array import array
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import redis
from openai import OpenAI

from rose.engine_records import array_of
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.embeddings.output_types import converted
from tests.support.bench import wait_until
from tests.support.echo import digest, has_no_jobs
from tests.support.gateway import Deployment, running_deployment

MODEL = "null-encoder"


@pytest.fixture(scope="module")
def deployment(_brokers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    broker: EmbeddedBroker = _brokers(False)
    with running_deployment(
        broker.url,
        "gateway-embeddings",
        worker={"task": "embed", "max_context": 1000},
        storage=str(tmp_path_factory.mktemp("files")),
    ) as deployment:
        yield deployment


@pytest.fixture
def raw(deployment: Deployment) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(deployment.redis_url, protocol=2) as client:
        yield client


@pytest.mark.parametrize("encoding", ["float", "base64", None])
@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ("a hare", ["a hare"]),
        (["a", "b"], ["a", "b"]),
        ([5, 6], ["(5, 6)"]),
        ([[5, 6], [7]], ["(5, 6)", "(7,)"]),
        ([f"text {n}" for n in range(200)], [f"text {n}" for n in range(200)]),
    ],
)
def test_openais_sdk_reads_a_vector_for_each_input(
    ai: OpenAI, inputs: Any, texts: list[str], encoding: Any
) -> None:
    form = {"encoding_format": encoding} if encoding else {}

    answer = ai.embeddings.create(model=MODEL, input=inputs, **form)

    found = [one.embedding for one in answer.data]
    if encoding == "base64":  # the SDK decodes what it has not been asked for alone
        found = [array_of(base64.b64decode(str(one))).tolist() for one in found]
    assert found == [digest(text) for text in texts]
    assert [one.index for one in answer.data] == list(range(len(texts)))
    assert answer.model == MODEL
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, texts))


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("output_type", ["float", "int8", "ubinary"])
def test_vectors_may_have_fewer_bytes(
    deployment: Deployment, encoding: str, output_type: Any
) -> None:
    body = {"model": MODEL, "input": "a hare", "output_dtype": output_type}

    answer = deployment.post("/embeddings", json={**body, "encoding_format": encoding}).json()

    expected = converted(array("f", digest("a hare")), output_type)
    found = answer["data"][0]["embedding"]
    if encoding == "base64":
        assert base64.b64decode(found) == expected.tobytes()
    else:
        assert found == expected.tolist()


def test_nothing_is_left_of_it(ai: OpenAI, deployment: Deployment, raw: redis.Redis) -> None:
    ai.embeddings.create(model=MODEL, input=["a"] * 200, dimensions=2)

    partition = Partition(deployment.queue)
    assert has_no_jobs(raw, partition)
    assert not list(raw.scan_iter(partition.tokens("*")))


def test_dimensions_may_be_fewer(ai: OpenAI) -> None:
    answer = ai.embeddings.create(model=MODEL, input="a hare", dimensions=3, user="me")

    assert answer.data[0].embedding == digest("a hare", 3)


def test_an_idempotency_key_brings_the_first_answer(
    deployment: Deployment,
) -> None:
    body = {"model": MODEL, "input": ["a", "b"]}
    headers = {"Idempotency-Key": "once"}

    answers = [deployment.post("/embeddings", json=body, headers=headers) for _ in range(2)]

    assert answers[0].json() == answers[1].json()
    assert answers[0].headers["x-rose-job-id"] == answers[1].headers["x-rose-job-id"]
    job_id = answers[0].headers["x-rose-job-id"]
    job = deployment.get(f"/jobs/{job_id}").json()
    assert (job["endpoint"], job["choices"][0]["status"]) == ("embedding", "finished")
    events = deployment.get(f"/jobs/{job_id}/events").text
    event = json.loads(events.split("data: ")[1])
    assert array_of(base64.b64decode(event["numbers"][1])).tolist() == digest("a") + digest("b")
    other = deployment.post("/embeddings", json={**body, "input": "c"}, headers=headers)
    assert other.status_code == 409


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"input": ""}, "input", "at least 1 character"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": ["a", ""]}, "input[1]", "at least 1 character"),
        ({"input": ["a"] * 2049}, "input", "may have 2048 inputs at the most"),
        ({"input": [["a"]]}, "input[0][0]", "valid integer"),
        ({"input": "x" * 1001}, "input", "1000 tokens"),
        ({"input": ["a", "x" * 1001]}, "input", "1000 tokens"),
        ({"dimensions": 9}, "dimensions", "has 8, so not 9"),
        ({"dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"output_dtype": "int4"}, "output_dtype", "'int8'"),
        ({"odd": 1}, "odd", "no such parameter"),
    ],
)
def test_a_wrong_request_is_refused(
    ai: OpenAI, change: dict[str, Any], param: str, message: str
) -> None:
    body = {"model": MODEL, "input": "a", **change}

    with pytest.raises(openai.BadRequestError) as raised:
        ai.post("/embeddings", cast_to=object, body=body)

    assert raised.value.param == param
    assert message in raised.value.message


def test_a_text_may_be_cut(ai: OpenAI) -> None:
    answer = ai.embeddings.create(model=MODEL, input="x" * 1001, extra_body={"truncate": True})

    assert answer.data[0].embedding == digest("x" * 1000)
    assert answer.usage.total_tokens == 1000


def test_a_model_that_embeds_answers_nothing_else(ai: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="embeds texts: send it to /v1/embeddings"):
        ai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError, match="embeds texts"):
        ai.completions.create(model=MODEL, prompt="hi")
    with pytest.raises(openai.BadRequestError, match="embeds texts"):
        ai.responses.create(model=MODEL, input="hi")
    with pytest.raises(openai.NotFoundError):
        ai.embeddings.create(model="nobody", input="hi")


def test_models_say_what_they_do(ai: OpenAI) -> None:
    model = ai.models.retrieve(MODEL).to_dict()

    assert (model["task"], model["dimensions"], model["chat"]) == ("embed", 8, False)


def test_a_batch_embeds(ai: OpenAI) -> None:
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/embeddings"}
        | {"body": {"model": MODEL, "input": [f"line {n}", "x"], "dimensions": 2}}
        for n in range(5)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = ai.files.create(file=("in.jsonl", content), purpose="batch")

    batch = ai.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    wait_until(lambda: ai.batches.retrieve(batch.id).status == "completed")

    output = ai.batches.retrieve(batch.id).output_file_id
    assert output is not None
    answers = map(json.loads, ai.files.content(output).text.splitlines())
    found = {one["custom_id"]: one["response"]["body"]["data"] for one in answers}
    assert {key: [row["embedding"] for row in rows] for key, rows in found.items()} == {
        str(n): [digest(f"line {n}", 2), digest("x", 2)] for n in range(5)
    }


def test_a_model_that_generates_does_not_embed(start_deployment: Any) -> None:
    refused = pytest.raises(openai.BadRequestError, match="generates text")
    with start_deployment().openai() as ai, refused as raised:
        ai.embeddings.create(model="null", input="a")
    assert (raised.value.code, raised.value.param) == ("model_not_supported", "model")
