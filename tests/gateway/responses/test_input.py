"""What the model is told: messages, items, and what came before, over HTTP."""

import httpx2 as httpx
import pytest

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.responses.items import chat_messages
from rose_gateway.responses.parameters import Item
from tests.gateway.responses.calls import ECHO, create, created, refused, text_of
from tests.support.gateway import Deployment


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
    listed = deployment.get(f"/responses/{third['id']}/input_items?order=asc").json()["data"]
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


def test_a_conversation_goes_on_though_its_first_responses_are_deleted(
    deployment: Deployment,
) -> None:
    # given
    first = created(deployment.url, input="ab", max_output_tokens=1)
    second = created(
        deployment.url, input="c", previous_response_id=first["id"], max_output_tokens=1
    )
    # when
    with deployment.openai() as client:
        client.responses.delete(first["id"])
        third = created(
            deployment.url, input="d", previous_response_id=second["id"], max_output_tokens=1
        )
        client.responses.delete(second["id"])
        listed = client.responses.input_items.list(third["id"], order="asc")
    # then
    assert len(listed.data) == 5
    error = refused(create(deployment.url, previous_response_id=first["id"]), 404)
    assert error["code"] == "previous_response_not_found"


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

    error = refused(deployment.get(f"/responses/{response_id}/input_items?after=msg_x"))

    assert error["param"] == "after"


def test_what_a_program_got_it_may_send_back(deployment: Deployment) -> None:
    first = created(deployment.url, input="ab")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}

    again = created(
        deployment.url, input=[*first["output"], reasoning, {"role": "user", "content": "c"}]
    )

    assert again["status"] == "incomplete"


def test_items_of_earlier_responses_are_named_by_their_ids(deployment: Deployment) -> None:
    first = created(deployment.url, input="ab", max_output_tokens=1)
    listed = deployment.get(f"/responses/{first['id']}/input_items").json()["data"]
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


@pytest.mark.parametrize("text_first", [True, False])
def test_a_text_and_a_call_are_one_message_in_either_order(text_first: bool) -> None:
    """LiteLLM sends the calls of an Anthropic message before its text."""
    said = {"type": "message", "role": "assistant", "content": [{"text": "I look."}]}
    known = {"call_id": "a", "name": "f", "arguments": "{}", "status": "completed"}
    call = {"type": "function_call", **known}
    output = {"type": "function_call_output", "call_id": "a", "output": "1"}

    messages = chat_messages([*([said, call] if text_first else [call, said]), output, said], None)

    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant"]
    assert messages[0]["content"] == "I look."
    assert len(messages[0]["tool_calls"]) == 1


def test_outputs_of_functions_stand_in_the_order_of_their_calls() -> None:
    # given: the calls in an earlier response, the outputs in another order
    def call(call_id: str) -> Item:
        call = {"call_id": call_id, "name": "f", "arguments": "{}", "status": "completed"}
        return {"type": "function_call", **call}

    def output(call_id: str) -> Item:
        return {"type": "function_call_output", "call_id": call_id, "output": f"of {call_id}"}

    # when
    messages = chat_messages([call("a"), call("b"), output("b"), output("a")], None)
    # then
    assert [message["content"] for message in messages] == ["", "of a", "of b"]
    for wrong in ("a", "c"):
        with pytest.raises(BadRequest, match=f"input: .*'{wrong}'"):
            chat_messages([call("a"), call("b"), output("b" if wrong == "a" else wrong)], None)
