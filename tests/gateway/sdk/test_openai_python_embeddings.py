"""Embeddings by openai-python, unmodified, which checks the answers against its types."""

from openai import AsyncOpenAI, OpenAI

from tests.gateway.sdk.deployments import EMBED, Deployment
from tests.support.echo import digest


def test_each_input_has_a_vector(client: OpenAI) -> None:
    answer = client.embeddings.create(
        model=EMBED, input=["a", "a hare"], dimensions=4, encoding_format="float"
    )

    assert [one.embedding for one in answer.data] == [digest("a", 4), digest("a hare", 4)]
    assert answer.usage.total_tokens == 7


async def test_the_async_client_embeds(deployment: Deployment) -> None:
    async with AsyncOpenAI(
        base_url=deployment.url, api_key="none", _strict_response_validation=True
    ) as client:
        answer = await client.embeddings.create(
            model=EMBED, input="a hare", encoding_format="float"
        )
    assert answer.data[0].embedding == digest("a hare")
