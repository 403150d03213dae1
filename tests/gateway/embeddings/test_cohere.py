"""POST /v2/embed of a running gateway. The null encoder's vectors are digests."""

from array import array
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from rose.engine_records import array_of
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.embeddings.output_types import converted
from tests.support.echo import digest
from tests.support.gateway import Deployment, running_deployment

BODY = {"model": "null-encoder", "input_type": "search_query"}


@pytest.fixture(scope="module")
def deployment(_brokers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    broker: EmbeddedBroker = _brokers(False)
    with running_deployment(
        broker.url,
        "gateway-cohere",
        worker={"task": "embed", "max_context": 100},
        storage=str(tmp_path_factory.mktemp("files")),
    ) as deployment:
        yield deployment


def embed(deployment: Deployment, **body: Any) -> httpx.Response:
    return httpx.post(f"{deployment.origin}/v2/embed", json={**BODY, **body}, timeout=90)


def test_vectors_come_in_each_type_that_is_asked_for(deployment: Deployment) -> None:
    texts = [f"text {number}" for number in range(100)]
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]

    answer = embed(deployment, texts=texts, embedding_types=types, output_dimension=5).json()

    rows = [array("f", digest(text, 5)) for text in texts]
    found = answer["embeddings"]
    assert list(found) == types
    for name in types[:-1]:
        assert found[name] == [converted(row, name).tolist() for row in rows]  # type: ignore[arg-type]
    assert [array_of(b64decode(one)) for one in found["base64"]] == rows
    assert answer["response_type"] == "embeddings_by_type"
    assert answer["meta"]["billed_units"] == {"input_tokens": sum(map(len, texts))}


def test_texts_may_be_contents(deployment: Deployment) -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in ("a", "b")]

    answer = embed(deployment, inputs=inputs).json()

    assert answer["embeddings"] == {"float": [digest("a"), digest("b")]}


def test_what_is_too_long_is_cut_or_refused(deployment: Deployment) -> None:
    texts = ["x" * 101]

    cut = embed(deployment, texts=texts).json()
    refused = embed(deployment, texts=texts, truncate="NONE")

    assert cut["embeddings"] == {"float": [digest("x" * 100)]}
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "texts")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"images": ["data:image/png;base64,"]}, "images", "embed text alone"),
        (
            {"inputs": [{"content": [IMAGE]}]},
            "inputs[0].content[0]",
            "is of the type 'image_url', and this server's models embed text alone",
        ),
        ({}, "texts", "give either texts or inputs"),
        ({"texts": ["a"], "input_type": "image"}, "input_type", "'search_query'"),
        ({"texts": ["a"], "truncate": "START"}, "truncate", "'NONE' or 'END'"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types[0]", "'ubinary'"),
        ({"texts": ["a"], "output_dimension": 9}, "output_dimension", "has 8, so not 9"),
        ({"texts": ["a"], "max_tokens": 5}, "max_tokens", "leave it out"),
    ],
)
def test_a_wrong_request_is_refused(
    deployment: Deployment, change: dict[str, Any], param: str, message: str
) -> None:
    answer = embed(deployment, **change)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
