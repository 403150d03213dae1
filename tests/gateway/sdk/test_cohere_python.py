"""Embeddings by Cohere's library, unmodified."""

from collections.abc import Iterator

import pytest

cohere = pytest.importorskip("cohere", reason="needs cohere")

from tests.gateway.sdk.deployments import EMBED, Deployment
from tests.support.echo import digest


@pytest.fixture
def co(deployment: Deployment) -> Iterator["cohere.ClientV2"]:
    with cohere.ClientV2("none", base_url=deployment.url.removesuffix("/v1")) as client:
        yield client


def test_each_text_has_a_vector_in_each_type(co: "cohere.ClientV2") -> None:
    answer = co.embed(
        model=EMBED,
        texts=["a", "a hare"],
        input_type="search_document",
        embedding_types=["float", "int8", "ubinary"],
        output_dimension=4,
    )

    found = answer.embeddings
    assert found.float_ == [digest("a", 4), digest("a hare", 4)]
    assert [max(map(abs, row)) for row in found.int8] == [127, 127]
    assert [len(row) for row in found.ubinary] == [1, 1]
    assert answer.meta.billed_units.input_tokens == 7


def test_an_image_is_refused(co: "cohere.ClientV2") -> None:
    with pytest.raises(cohere.BadRequestError, match="embed text alone"):
        co.embed(model=EMBED, images=["data:image/png;base64,"], input_type="search_query")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    with pytest.raises(cohere.BadRequestError, match="embed text alone"):
        co.embed(model=EMBED, inputs=[{"content": [image]}], input_type="search_query")


async def test_the_async_client_embeds(deployment: Deployment) -> None:
    url = deployment.url.removesuffix("/v1")
    async with cohere.AsyncClientV2("none", base_url=url) as co:
        answer = await co.embed(model=EMBED, texts=["a"], input_type="search_query")
    assert answer.embeddings.float_ == [digest("a")]
