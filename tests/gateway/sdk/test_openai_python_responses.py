"""The Responses API by openai-python, unmodified: what a program sees that only changes its URL."""

import itertools
import json

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.gateway.sdk.deployments import CHAT, SAYS_HELLO, SLOW, Deployment, Weather
from tests.support.chat_model import CONTEXT

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": Weather.model_json_schema(),
    "strict": True,
}
OTHER_TOOL = {**TOOL, "name": "get_time", "parameters": {"type": "object", "properties": {}}}


def test_a_text_is_answered(client: OpenAI) -> None:
    response = client.responses.create(
        model=CHAT,
        input="say hello",
        instructions="you are friendly",
        metadata={"tenant": "acme"},
        service_tier="priority",
        extra_body=SAYS_HELLO,
    )

    assert response.status == "completed"
    assert response.output_text == "hello, world"
    assert response.metadata == {"tenant": "acme"}
    assert response.instructions == "you are friendly"
    assert response.service_tier == "priority"
    assert response.error is None
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.completed_at is not None
    assert response.completed_at >= response.created_at


def test_a_response_is_retrieved_as_it_was_answered(client: OpenAI) -> None:
    created = client.responses.create(model=CHAT, input="hi", extra_body=SAYS_HELLO)

    retrieved = client.responses.retrieve(created.id)

    assert retrieved.to_dict() == created.to_dict()


def test_a_stream_has_every_event_in_order(client: OpenAI) -> None:
    with client.responses.create(
        model=CHAT, input="hi", stream=True, extra_body=SAYS_HELLO
    ) as stream:
        events = list(stream)

    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        "hello, world"
    )
    assert events[-1].response == client.responses.retrieve(events[-1].response.id)


def test_the_stream_helper_accumulates(client: OpenAI) -> None:
    with client.responses.stream(model=CHAT, input="hi", extra_body=SAYS_HELLO) as stream:
        snapshots = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()

    assert snapshots[-1] == final.output_text == "hello, world"
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(snapshots))


def test_a_background_stream_is_resumed_at_a_cursor(client: OpenAI) -> None:
    created = client.responses.create(
        model=SLOW, input="abc", background=True, stream=True, max_output_tokens=40
    )
    with created as stream:
        begun = [next(stream) for _ in range(12)]
    response_id, cursor = begun[0].response.id, begun[-1].sequence_number

    with client.responses.retrieve(response_id, stream=True, starting_after=cursor) as stream:
        rest = list(stream)

    assert rest[0].sequence_number == cursor + 1
    with client.responses.retrieve(response_id, stream=True) as stream:
        whole = list(stream)
    assert [e.to_dict() for e in begun + rest] == [e.to_dict() for e in whole]
    deltas = [e.delta for e in whole if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole[-1].response.output_text


def test_the_stream_helper_resumes_at_a_cursor(client: OpenAI) -> None:
    with client.responses.stream(
        model=CHAT, input="hi", background=True, extra_body=SAYS_HELLO
    ) as stream:
        begun = [next(stream) for _ in range(6)]
    response_id, cursor = begun[0].response.id, begun[-1].sequence_number

    with client.responses.stream(response_id=response_id, starting_after=cursor) as stream:
        rest = list(stream)
        final = stream.get_final_response()

    assert [e.sequence_number for e in rest] == list(range(cursor + 1, cursor + 1 + len(rest)))
    assert final.output_text == "hello, world"


def test_structured_output_is_parsed(client: OpenAI) -> None:
    response = client.responses.parse(model=CHAT, input="the weather?", text_format=Weather)

    assert isinstance(response.output_parsed, Weather)
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"
    with client.responses.stream(model=CHAT, input="the weather?", text_format=Weather) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Weather)


def test_any_json_object_may_be_asked_for(client: OpenAI) -> None:
    response = client.responses.create(
        model=CHAT,
        input="the weather?",
        text={"format": {"type": "json_object"}},
        max_output_tokens=2000,
    )

    if response.status == "completed":
        assert isinstance(json.loads(response.output_text), dict)
    else:  # the random model has not closed it in time
        assert response.output_text.lstrip().startswith("{")


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "name": "get_weather"}],
    ids=["required", "named"],
)
def test_a_function_must_be_called(client: OpenAI, choice: object) -> None:
    response = client.responses.create(
        model=CHAT,
        input="the weather in Paris?",
        tools=[TOOL],
        tool_choice=choice,
        parallel_tool_calls=False,
    )

    (call,) = response.output
    assert call.type == "function_call"
    assert (call.name, call.status) == ("get_weather", "completed")
    Weather.model_validate_json(call.arguments)


def test_of_several_functions_one_is_called(client: OpenAI) -> None:
    response = client.responses.create(
        model=CHAT, input="hi", tools=[TOOL, OTHER_TOOL], tool_choice="required"
    )

    assert response.output
    assert {call.name for call in response.output} <= {"get_weather", "get_time"}


def test_a_call_streams_and_its_result_goes_back(client: OpenAI) -> None:
    with client.responses.stream(
        model=CHAT,
        input="the weather in Paris?",
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    (call,) = final.output
    assert deltas[-1].snapshot == done.arguments == call.arguments
    Weather.model_validate_json(call.arguments)

    answer = client.responses.create(
        model=CHAT,
        previous_response_id=final.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        extra_body=SAYS_HELLO,
    )

    assert answer.output_text == "hello, world"
    kinds = [item.type for item in client.responses.input_items.list(answer.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output"]


def test_a_model_may_call_a_function_by_itself(client: OpenAI) -> None:
    arguments = '{"city": "Oslo", "degrees": 3}'
    says_call = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'

    response = client.responses.create(
        model=CHAT,
        input="the weather in Oslo?",
        tools=[TOOL],
        extra_body={"grammar": f"start: {json.dumps(says_call)}"},
    )

    (call,) = response.output
    assert call.type == "function_call"
    assert Weather.model_validate_json(call.arguments) == Weather(city="Oslo", degrees=3)


def test_log_probabilities_come_with_the_text(client: OpenAI) -> None:
    response = client.responses.create(
        model=CHAT,
        input="hi",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        extra_body=SAYS_HELLO,
    )

    (message,) = response.output
    logprobs = message.content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in logprobs) == b"hello, world"
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in logprobs)


def test_log_probabilities_come_with_the_deltas(client: OpenAI) -> None:
    events = list(
        client.responses.create(
            model=CHAT, input="hi", top_logprobs=1, stream=True, extra_body=SAYS_HELLO
        )
    )

    deltas = [e for e in events if e.type == "response.output_text.delta"]
    (done,) = [e for e in events if e.type == "response.output_text.done"]
    said = [entry.to_dict() for delta in deltas for entry in delta.logprobs]
    assert said
    assert [entry.to_dict() for entry in done.logprobs[: len(said)]] == said
    assert "".join(entry.token for entry in done.logprobs) == "hello, world"


def test_without_a_limit_the_answer_may_fill_the_context(client: OpenAI) -> None:
    response = client.responses.create(
        model=CHAT, input="a" * (CONTEXT - 200), extra_body={"ignore_eos": True}
    )

    assert response.status == "incomplete"
    assert response.usage is not None
    assert response.usage.total_tokens == CONTEXT


async def test_the_asyncio_client_does_the_same(deployment: Deployment) -> None:
    async with AsyncOpenAI(base_url=deployment.url, api_key="none") as client:
        stream = await client.responses.create(
            model=SLOW, input="abc", background=True, stream=True, max_output_tokens=20
        )
        async with stream:
            first = await anext(stream)
        async with client.responses.stream(
            response_id=first.response.id, starting_after=first.sequence_number
        ) as resumed:
            events = [event async for event in resumed]

        answer = await client.responses.parse(model=CHAT, input="hi", text_format=Weather)

    assert events[-1].type == "response.incomplete"
    assert [e.sequence_number for e in events] == list(range(1, 1 + len(events)))
    assert isinstance(answer.output_parsed, Weather)
