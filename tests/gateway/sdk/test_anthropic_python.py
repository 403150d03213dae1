"""Messages by anthropic-python, unmodified."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from rose.errors import JobCancelled
from tests.gateway.sdk.deployments import CHAT, ECHO, FULL, HI, SAYS_HELLO, SLOW, Deployment
from tests.support.chat_model import CONTEXT

TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def claude(deployment: Deployment) -> Iterator[Anthropic]:
    """Checks every answer against the types of the SDK, which it does not by itself."""
    with Anthropic(
        base_url=deployment.url.removesuffix("/v1"),
        api_key="none",
        timeout=90,
        max_retries=0,
        _strict_response_validation=True,
    ) as client:
        yield client


def test_the_models_are_listed(claude: Anthropic) -> None:
    models = {model.id: model for model in claude.models.list()}

    assert {CHAT, ECHO, SLOW, FULL} <= set(models)
    assert claude.models.retrieve(ECHO) == models[ECHO]
    assert models[CHAT].max_input_tokens == CONTEXT


def test_a_message_is_answered(claude: Anthropic) -> None:
    message = claude.messages.create(
        model=CHAT,
        max_tokens=100,
        system=[{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        messages=HI,
        extra_body=SAYS_HELLO,
    )

    (block,) = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason) == ("hello, world", "end_turn")
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 0


def test_a_stream_says_what_the_message_says(claude: Anthropic) -> None:
    with claude.messages.stream(
        model=CHAT, max_tokens=100, messages=HI, extra_body=SAYS_HELLO
    ) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()

    assert text == "hello, world"
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 0


def test_tokens_are_counted_before_they_are_asked_for(claude: Anthropic) -> None:
    counted = claude.messages.count_tokens(model=CHAT, system="be kind", messages=HI, tools=[TOOL])
    answered = claude.messages.create(
        model=CHAT,
        max_tokens=500,
        system="be kind",
        messages=HI,
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    usage = answered.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_stop_sequence_ends_the_answer_and_is_named(claude: Anthropic) -> None:
    message = claude.messages.create(
        model=CHAT, max_tokens=100, messages=HI, stop_sequences=["!", ","], extra_body=SAYS_HELLO
    )

    (block,) = message.content
    assert block.type == "text"
    assert block.text == "hello"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ",")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_is_called_and_its_result_is_answered(
    claude: Anthropic, choice: dict[str, Any]
) -> None:
    # when
    with claude.messages.stream(
        model=CHAT,
        max_tokens=500,
        messages=HI,
        tools=[TOOL],
        tool_choice={**choice, "disable_parallel_tool_use": True},
        extra_body={"seed": 3},
    ) as stream:
        asked = stream.get_final_message()
    # then
    (call,) = asked.content
    assert call.type == "tool_use"
    assert (call.name, asked.stop_reason) == ("get_weather", "tool_use")
    assert call.input["city"] in ("Paris", "Oslo")
    assert isinstance(call.input["days"], int)
    # when
    answered = claude.messages.create(
        model=CHAT,
        max_tokens=100,
        messages=[
            *HI,
            asked.to_param(),
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": "no",
                        "is_error": True,
                    }
                ],
            },
        ],
        tools=[TOOL],
        tool_choice={"type": "none"},
        extra_body=SAYS_HELLO,
    )
    # then
    (block,) = answered.content
    assert block.type == "text"
    assert block.text == "hello, world"


def test_errors_are_the_sdks_own(claude: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match=CHAT):
        claude.messages.create(model="claude-opus-9", max_tokens=1, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens") as refused:
        claude.messages.create(model=ECHO, max_tokens=0, messages=HI)
    assert refused.value.request_id
    assert refused.value.type == "invalid_request_error"
    with (
        pytest.raises(anthropic.BadRequestError, match="prompt is too long: "),
        claude.messages.stream(
            model=CHAT, max_tokens=1, messages=[{"role": "user", "content": "x" * 9000}]
        ) as stream,
    ):
        stream.until_done()


def test_a_full_queue_is_a_rate_limit(claude: Anthropic, deployment: Deployment) -> None:
    with deployment.client(FULL) as behind:
        holds_the_queue = behind.submit("hi", max_new_tokens=100_000)
        try:
            with pytest.raises(anthropic.RateLimitError) as full:
                claude.messages.create(model=FULL, max_tokens=1, messages=HI)
        finally:
            holds_the_queue.cancel()
            with pytest.raises(JobCancelled):
                holds_the_queue.result(60)
    assert float(full.value.response.headers["retry-after"]) >= 1


def test_a_closed_stream_cancels_its_job(claude: Anthropic, deployment: Deployment) -> None:
    with claude.messages.create(model=SLOW, max_tokens=5000, messages=HI, stream=True) as stream:
        job_id = stream.response.headers["x-rose-job-id"]
        next(iter(stream))
    with deployment.client(SLOW) as behind, pytest.raises(JobCancelled):
        behind.job(job_id).result(60)
