"""Embeddings by openai-python, unmodified, which checks the answers against its types."""

from array import array
from base64 import b64decode
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.gateway.sdk.deployments import EMBED, Deployment
from tests.support.echo import digest


def test_each_input_has_a_vector(client: OpenAI) -> None:
    answer = client.embeddings.create(
        model=EMBED, input=["a", "a hare"], dimensions=4, encoding_format="float"
    )

    assert [one.embedding for one in answer.data] == [digest("a", 4), digest("a hare", 4)]
    assert answer.usage.total_tokens == 7


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        ("a", ["a"]),
        (["a", "漢字"], ["a", "漢字"]),
        ([1, 2], ["(1, 2)"]),
        ([[3], [1, 2]], ["(3,)", "(1, 2)"]),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_vectors_come_in_base64_unless_asked_otherwise(
    deployment: Deployment, asked: Any, read: list[str]
) -> None:
    # The SDK decodes what it has asked for by itself. Its types have no base64: not checked here.
    with OpenAI(base_url=deployment.url, api_key="none") as client:
        answer = client.embeddings.create(model=EMBED, input=asked)
        (packed, *_) = client.embeddings.create(
            model=EMBED, input=asked, encoding_format="base64"
        ).data

    assert [one.embedding for one in answer.data] == [digest(text) for text in read]
    assert array("f", b64decode(str(packed.embedding))).tolist() == digest(read[0])


async def test_the_async_client_embeds(deployment: Deployment) -> None:
    async with AsyncOpenAI(
        base_url=deployment.url, api_key="none", _strict_response_validation=True
    ) as client:
        answer = await client.embeddings.create(
            model=EMBED, input="a hare", encoding_format="float"
        )
    assert answer.data[0].embedding == digest("a hare")
