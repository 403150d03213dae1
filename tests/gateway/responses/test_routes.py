"""/v1/responses with the null engine, which echoes the prompt byte by byte."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
from openai.types.responses import Response

from rose.errors import JobNotFound
from rose_producer import Client
from tests.gateway.responses.calls import (
    create,
    created,
    events_of,
    followed,
    has_ended,
    refused,
    text_of,
    wait_for,
)
from tests.support.gateway import Deployment

ECHO = "104 101 108 108 "
"""hell"""


def test_an_answer_is_what_the_library_calls_a_response(deployment: Deployment) -> None:
    answer = create(deployment.url, metadata={"a": "b"}, instructions=None)

    response = answer.json()
    Response.model_validate(response)
    assert text_of(response) == ECHO
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 4)
    assert response["metadata"] == {"a": "b"}
    assert answer.headers["x-rose-job-id"] == response["id"].removeprefix("resp_")


def test_a_stream_is_replayed_the_same_from_any_number(deployment: Deployment) -> None:
    stream = create(deployment.url, stream=True)
    whole = events_of(stream.content)
    response_id = whole[0]["response"]["id"]

    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert followed(deployment.url, response_id) == stream.content
    for number in range(len(whole)):
        assert events_of(followed(deployment.url, response_id, number)) == whole[number + 1 :]


def test_last_event_id_is_a_position_too(deployment: Deployment) -> None:
    stream = create(deployment.url, stream=True)
    whole = events_of(stream.content)

    rest = httpx.get(
        f"{deployment.url}/responses/{whole[0]['response']['id']}?stream=true",
        headers={"last-event-id": "5"},
        timeout=90,
    )

    assert events_of(rest.content) == whole[6:]


def test_a_background_response_goes_its_way(deployment: Deployment) -> None:
    response = created(deployment.url, background=True)
    assert response["background"] is True

    final = wait_for(deployment.url, response["id"], has_ended)

    events = events_of(followed(deployment.url, response["id"]))
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert events[-1]["response"] == final
    assert text_of(final) == ECHO


def test_messages_and_instructions_reach_the_model_in_their_order(deployment: Deployment) -> None:
    items = [
        {"role": "user", "content": "b"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "d"}]},
    ]

    response = created(deployment.url, instructions="a", input=items)

    assert text_of(response) == "97 98 99 100 "


def test_a_response_goes_on_from_the_one_before(deployment: Deployment) -> None:
    first = created(
        deployment.url, input="ab", max_output_tokens=2, instructions="not carried over"
    )
    second = created(
        deployment.url, input="c", previous_response_id=first["id"], max_output_tokens=100
    )
    third = created(
        deployment.url, input="d", previous_response_id=second["id"], max_output_tokens=1
    )

    conversation = "ab" + text_of(first) + "c"
    assert text_of(second).startswith("".join(f"{byte} " for byte in conversation.encode()))
    assert second["previous_response_id"] == first["id"]
    listed = httpx.get(
        f"{deployment.url}/responses/{third['id']}/input_items?order=asc", timeout=90
    ).json()["data"]
    assert [(item["role"], item["content"][0]["text"]) for item in listed] == [
        ("user", "ab"),
        ("assistant", text_of(first)),
        ("user", "c"),
        ("assistant", text_of(second)),
        ("user", "d"),
    ]


def test_a_previous_response_must_be_there(deployment: Deployment) -> None:
    error = refused(create(deployment.url, previous_response_id="resp_0-nothing"), 404)

    assert (error["param"], error["code"]) == (
        "previous_response_id",
        "previous_response_not_found",
    )


def test_input_items_come_in_pages(deployment: Deployment) -> None:
    items = [
        {"role": "user", "content": str(number), "id": f"mine_{number}"} for number in range(5)
    ]
    response_id = created(deployment.url, input=items)["id"]

    seen: list[str] = []
    with deployment.openai() as client:
        for page in client.responses.input_items.list(
            response_id, limit=2, order="asc"
        ).iter_pages():
            seen += [str(item.id) for item in page.data]
        newest = client.responses.input_items.list(response_id, limit=1)

    assert seen == [f"mine_{number}" for number in range(5)]
    assert (newest.data[0].id, newest.has_more) == ("mine_4", True)


def test_items_without_an_id_get_one_that_stays(deployment: Deployment) -> None:
    url = f"{deployment.url}/responses/{created(deployment.url)['id']}/input_items"

    first, again = httpx.get(url, timeout=90).json(), httpx.get(url, timeout=90).json()

    assert first == again
    assert first["data"][0]["id"].startswith("msg_")


def test_input_items_after_one_that_is_not_there(deployment: Deployment) -> None:
    response_id = created(deployment.url)["id"]

    error = refused(
        httpx.get(f"{deployment.url}/responses/{response_id}/input_items?after=msg_x", timeout=90)
    )

    assert error["param"] == "after"


def test_only_background_responses_can_be_cancelled(deployment: Deployment) -> None:
    response_id = created(deployment.url)["id"]

    refused(httpx.post(f"{deployment.url}/responses/{response_id}/cancel", timeout=90))


def test_a_cancellation_that_comes_too_late_gives_the_final_response(
    deployment: Deployment,
) -> None:
    response_id = created(deployment.url, background=True)["id"]
    final = wait_for(deployment.url, response_id, has_ended)

    for _ in range(2):
        answer = httpx.post(f"{deployment.url}/responses/{response_id}/cancel", timeout=90)
        assert (answer.status_code, answer.json()) == (200, final)


def test_a_deleted_response_is_gone(deployment: Deployment) -> None:
    response_id = created(deployment.url)["id"]

    answer = httpx.delete(f"{deployment.url}/responses/{response_id}", timeout=90)

    assert answer.json() == {"id": response_id, "object": "response", "deleted": True}
    refused(httpx.get(f"{deployment.url}/responses/{response_id}", timeout=90), 404)
    refused(httpx.delete(f"{deployment.url}/responses/{response_id}", timeout=90), 404)


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_stored_cannot_be_retrieved(deployment: Deployment, stream: bool) -> None:
    answer = create(deployment.url, store=False, stream=stream)
    job_id = answer.headers["x-rose-job-id"]

    for path in ("", "?stream=true", "/input_items"):
        refused(httpx.get(f"{deployment.url}/responses/resp_{job_id}{path}", timeout=90), 404)
    refused(create(deployment.url, previous_response_id=f"resp_{job_id}"), 404)


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_and_is_not_stored_is_deleted(deployment: Deployment, stream: bool) -> None:
    answer = create(
        deployment.url, store=False, stream=stream, top_logprobs=1
    )  # refused by the worker

    assert answer.status_code == (200 if stream else 400)
    with (
        Client(redis_url=deployment.redis_url, queue=deployment.queue) as client,
        pytest.raises(JobNotFound),
    ):
        client.job(answer.headers["x-rose-job-id"]).status()


@pytest.mark.parametrize("path", ["", "/cancel", "/input_items"])
@pytest.mark.parametrize("response_id", ["resp_0-nothing", "nothing", "resp_", "resp_a\u00e9"])
def test_what_is_not_there_is_not_found(
    deployment: Deployment, path: str, response_id: str
) -> None:
    method = "POST" if path == "/cancel" else "GET"

    error = refused(
        httpx.request(method, f"{deployment.url}/responses/{response_id}{path}", timeout=90), 404
    )

    assert error["code"] == "not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "other"}, None),
        ({"unknown": 1}, "unknown"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]},
            "input",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"}]},
            "input[0].name",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["nonsense"]}, "include[0]"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
        ({"metadata": {str(n): "b" for n in range(17)}}, "metadata"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    deployment: Deployment, fields: dict[str, Any], param: str | None
) -> None:
    answer = create(deployment.url, **fields)

    if param is None:
        assert refused(answer, 404)["code"] == "model_not_found"
    else:
        assert refused(answer)["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"truncation": "disabled"},
        {"reasoning": {}},
        {"reasoning": {"summary": "auto"}, "client_metadata": {"x-codex-window-id": "1"}},
        {"reasoning": None, "conversation": None, "prompt": None, "tools": None},
        {"text": {"format": {"type": "text"}, "verbosity": None}},
        {"tools": [], "tool_choice": "auto"},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": "none"},
        {"include": ["reasoning.encrypted_content"]},
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"max_tool_calls": 3, "parallel_tool_calls": False},
        {"stream": False, "background": False, "store": True},
    ],
)
def test_what_asks_for_nothing_is_accepted(deployment: Deployment, fields: dict[str, Any]) -> None:
    assert text_of(created(deployment.url, **fields)) == ECHO


def test_what_a_program_got_it_may_send_back(deployment: Deployment) -> None:
    first = created(deployment.url, input="ab")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}

    again = created(
        deployment.url, input=[*first["output"], reasoning, {"role": "user", "content": "c"}]
    )

    assert again["status"] == "incomplete"


def test_items_of_earlier_responses_are_named_by_their_ids(deployment: Deployment) -> None:
    first = created(deployment.url, input="ab", max_output_tokens=1)
    listed = httpx.get(f"{deployment.url}/responses/{first['id']}/input_items", timeout=90).json()[
        "data"
    ]
    names = [listed[0]["id"], first["output"][0]["id"]]

    again = created(
        deployment.url,
        input=[
            {"type": "item_reference", "id": names[0]},
            {"id": names[1]},
            {"role": "user", "content": "c"},
        ],
        max_output_tokens=6,
    )

    assert text_of(again) == "".join(f"{byte} " for byte in b"ab97 c"[:6])


@pytest.mark.parametrize("item_id", ["msg_0-nothing", "nothing", "msg_", "msg_0-x_in_1"])
def test_an_item_that_is_not_there_is_not_found(deployment: Deployment, item_id: str) -> None:
    error = refused(create(deployment.url, input=[{"type": "item_reference", "id": item_id}]), 404)

    assert (error["param"], error["code"]) == ("input[0].id", "item_not_found")


def test_a_call_that_was_cut_off_is_not_told_to_the_model(deployment: Deployment) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a'}
    user = {"role": "user", "content": "hello"}

    response = created(deployment.url, input=[{**call, "status": "incomplete"}, user])

    assert text_of(response) == ECHO


@pytest.mark.parametrize("status", ["incomplete", "completed"])
def test_what_is_said_of_broken_arguments_reaches_the_model(
    deployment: Deployment, status: str
) -> None:
    """An agent tells its model what was wrong, and goes on."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a'}
    output = {"type": "function_call_output", "call_id": "c", "output": "no JSON"}

    response = created(
        deployment.url, input=[{**call, "status": status}, output], max_output_tokens=7
    )

    assert text_of(response) == "".join(f"{byte} " for byte in b"no JSON")


def test_service_tiers_are_shown_as_they_were_served(deployment: Deployment) -> None:
    tiers = {"auto": "default", "flex": "flex", "priority": "priority", "fast": "priority"}

    for asked, shown in tiers.items():
        assert created(deployment.url, service_tier=asked)["service_tier"] == shown


def test_a_background_prompt_that_the_worker_refuses_fails(deployment: Deployment) -> None:
    response_id = created(deployment.url, background=True, top_logprobs=1)["id"]

    final = wait_for(deployment.url, response_id, has_ended)

    assert final["status"] == "failed"
    assert (final["error"]["code"], final["error"]["type"]) == (
        "invalid_prompt",
        "invalid_parameter",
    )
    refused(create(deployment.url, previous_response_id=response_id))


def test_a_response_that_missed_its_deadline_failed(deployment: Deployment) -> None:
    response = created(deployment.url, deadline_s=0.001, max_output_tokens=4000)

    assert response["status"] == "failed"
    assert response["error"]["type"] == "deadline_exceeded"
