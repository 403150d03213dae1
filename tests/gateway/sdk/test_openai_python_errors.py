"""What openai-python raises, repeats by itself and gives up, unmodified."""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.gateway.sdk.deployments import CHAT, FULL, HI, SLOW, Deployment, openai_client
from tests.support.chat_model import CONTEXT
from tests.support.gateway import running_deployment

#: With the chat template's tokens too long for the model, which only its worker knows.
BEYOND = "a" * (CONTEXT - 1)


def test_a_wrong_request_is_refused_with_the_field(client: OpenAI) -> None:
    wrong: Any = [{"role": "user", "content": 3}]
    for ask, param in (
        (
            lambda: client.chat.completions.create(model=CHAT, messages=wrong),
            "messages[0].content",
        ),
        (
            lambda: client.responses.create(model=CHAT, input="hi", metadata={"a": "b" * 513}),
            "metadata.a",
        ),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask()
        assert refused.value.param == param
        assert refused.value.type == "invalid_request_error"
        assert refused.value.request_id


def test_an_unknown_model_and_an_unknown_response_are_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=HI)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")

    for ask in (
        client.responses.retrieve,
        client.responses.cancel,
        client.responses.delete,
        client.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            ask("resp_0000")


def test_a_prompt_beyond_the_context_is_refused(client: OpenAI) -> None:
    for param, ask in (
        (
            "messages",
            lambda text: client.chat.completions.create(
                model=CHAT, messages=[{"role": "user", "content": text}]
            ),
        ),
        ("input", lambda text: client.responses.create(model=CHAT, input=text)),
        ("prompt", lambda text: client.completions.create(model=CHAT, prompt=text)),
    ):
        # found by the worker; before that, by Redis
        for text in ("a" * 10_000, "a" * 400_000):
            with pytest.raises(openai.BadRequestError) as refused:
                ask(text)
            assert refused.value.code == "context_length_exceeded"
            # by which LangChain and LiteLLM know it
            assert "prompt is too long" in refused.value.message
            assert "this model's maximum context length is" in refused.value.message
            assert refused.value.param == param


def test_a_token_that_the_model_lacks_is_refused_by_the_name_of_its_parameter(
    client: OpenAI,
) -> None:
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("prompt", {"prompt": [9_999_999]}),
        ("logit_bias", {"prompt": "hi", "logit_bias": {"9999999": 1}}),
    )
    for param, asked in wrong:
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=CHAT, **asked)
        assert refused.value.param == param


def test_a_prompt_beyond_the_context_is_refused_as_a_stream_too(client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": BEYOND}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=CHAT, messages=messages, stream=True)
    assert refused.value.code == "context_length_exceeded"


def test_a_job_that_dies_in_a_stream_raises(client: OpenAI, deployment: Deployment) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=SLOW, messages=HI, stream=True, max_tokens=100_000
    )

    with raw.parse() as stream, deployment.client(SLOW) as behind:
        next(stream)
        behind.job(raw.headers["x-rose-job-id"]).cancel()
        with pytest.raises(openai.APIError) as broken:
            list(stream)

    assert broken.value.code == "cancelled"


def test_a_response_that_dies_says_so(client: OpenAI) -> None:
    with client.responses.create(
        model=SLOW,
        input="hi",
        stream=True,
        max_output_tokens=100_000,
        extra_body={"deadline_s": 1},
    ) as stream:
        *_, last = list(stream)

    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"


def test_a_full_queue_is_a_limit_and_the_client_waits_for_room(client: OpenAI) -> None:
    holds_the_queue = client.responses.create(
        model=FULL, input="hi", background=True, max_output_tokens=100_000
    )

    with pytest.raises(openai.RateLimitError) as refused:
        client.with_options(max_retries=0).chat.completions.create(model=FULL, messages=HI)
    assert refused.value.code == "queue_full"
    assert float(refused.value.response.headers["retry-after"]) >= 1

    with at_the_first_refusal(429, lambda: client.responses.cancel(holds_the_queue.id)) as http:
        patient = client.with_options(max_retries=50, http_client=http)
        raw = patient.chat.completions.with_raw_response.create(
            model=FULL, messages=HI, max_tokens=1
        )
    assert raw.retries_taken >= 1
    assert raw.parse().choices[0].message.content == "104 "


@needs_redis_server
def test_a_redis_that_is_away_is_waited_for(own_redis: EmbeddedBroker, queue: str) -> None:
    with (
        running_deployment(own_redis.url, queue, redis_retries=0, redis_timeout_s=1) as deployment,
        openai_client(deployment.url) as client,
    ):
        assert client.completions.create(model="null", prompt="a", max_tokens=1).id

        own_redis.stop()
        with pytest.raises(openai.InternalServerError) as away:
            client.with_options(max_retries=0).completions.create(model="null", prompt="a")
        assert away.value.status_code == 503
        assert float(away.value.response.headers["retry-after"]) >= 1

        with at_the_first_refusal(503, own_redis.start) as http:
            patient = client.with_options(max_retries=50, http_client=http)
            raw = patient.completions.with_raw_response.create(
                model="null", prompt="a", max_tokens=1
            )
        assert raw.retries_taken >= 1
        assert raw.parse().choices[0].text == "97 "


def at_the_first_refusal(status: int, then: Callable[[], object]) -> DefaultHttpxClient:
    """What carries the SDK's requests, and does this when the first one is refused so."""
    told: list[int] = []

    def look(response) -> None:
        if response.status_code == status and not told:
            told.append(status)
            then()

    return DefaultHttpxClient(event_hooks={"response": [look]})
