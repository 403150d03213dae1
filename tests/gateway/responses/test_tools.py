"""Tools of agents that are no functions: their calls, events, outputs, and the turn after."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.gateway.responses.calls import create, created, events_of, followed, refused
from tests.support import scripted
from tests.support.gateway import Deployment, running_deployment

PATCH = '*** Begin Patch\n*** Delete File: "a"\n*** End Patch'
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)+/"}
CUSTOM = {"type": "custom", "name": "apply", "description": "Edits files.", "format": GRAMMAR}
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
FAMILY = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [ADD, CUSTOM]}
SEARCH = {"type": "web_search", "external_web_access": True}


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with (
        EmbeddedBroker() as broker,
        running_deployment(broker.url, "tools", worker=scripted.WORKER) as deployment,
    ):
        yield deployment


def respond(deployment: Deployment, given: Any, tools: list[Any], **fields: Any) -> dict[str, Any]:
    asked = {"model": scripted.MODEL, "max_output_tokens": None, "input": given, "tools": tools}
    return created(deployment.url, **{**asked, **fields})


@pytest.mark.parametrize(
    ("tool", "step", "item", "output"),
    [
        (
            CUSTOM,
            {"call": "apply", "arguments": {"input": PATCH}},
            {"type": "custom_tool_call", "name": "apply", "input": PATCH},
            {"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "ok"}]},
        ),
        (
            FAMILY,
            {"call": "agents__apply", "arguments": {"input": "x"}},
            {"type": "custom_tool_call", "name": "apply", "namespace": "agents", "input": "x"},
            {"type": "custom_tool_call_output", "output": "ok"},
        ),
        (
            FAMILY,
            {"call": "agents__add", "arguments": {}},
            {"type": "function_call", "name": "add", "namespace": "agents", "arguments": "{}"},
            {"type": "function_call_output", "output": "ok"},
        ),
        (
            {"type": "local_shell"},
            {"call": "local_shell", "arguments": {"command": ["ls", "-l"], "timeout_ms": 9}},
            {
                "type": "local_shell_call",
                "action": {
                    "type": "exec",
                    "command": ["ls", "-l"],
                    "env": {},
                    "timeout_ms": 9,
                    "user": None,
                    "working_directory": None,
                },
            },
            {"type": "local_shell_call_output", "output": "ok"},
        ),
        (
            {"type": "shell", "environment": {"type": "local"}},
            {"call": "shell", "arguments": {"commands": ["ls"], "more": 1}},
            {
                "type": "shell_call",
                "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None},
            },
            {
                "type": "shell_call_output",
                "output": [
                    {"stdout": "ok", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
                ],
            },
        ),
        (
            {"type": "apply_patch"},
            {
                "call": "apply_patch",
                "arguments": {"type": "update_file", "path": "a", "diff": "-x\n+y"},
            },
            {
                "type": "apply_patch_call",
                "operation": {"type": "update_file", "path": "a", "diff": "-x\n+y"},
            },
            {"type": "apply_patch_call_output", "status": "failed", "output": "ok"},
        ),
    ],
)
def test_a_call_is_an_item_of_its_own_and_goes_back_with_its_output(
    deployment: Deployment,
    tool: dict[str, Any],
    step: dict[str, Any],
    item: dict[str, Any],
    output: dict[str, Any],
) -> None:
    # given a model that calls the tool, and then repeats what it has said
    tools = [SEARCH, tool]
    prompt = scripted.script(step, {"say": "It said {result}."})

    # when
    first = respond(deployment, prompt, tools)
    (call,) = first["output"]
    answer = {**output, "call_id": call["call_id"]}
    second = respond(deployment, [answer], tools, previous_response_id=first["id"])
    whole = [{"role": "user", "content": prompt}, call, answer]
    stateless = respond(deployment, whole, tools, store=False)

    # then
    assert item.items() <= call.items()
    assert call["status"] == "completed"
    assert first["tools"] == [first["tools"][0]], "what nobody runs here is not shown"
    (text,) = second["output"][0]["content"]
    assert "ok" in text["text"]
    assert stateless["output"][0]["content"] == second["output"][0]["content"]
    kept = deployment.get(f"/responses/{second['id']}/input_items").json()["data"]
    assert [one["type"] for one in kept] == [output["type"], item["type"], "message"]
    by_name = {"type": "item_reference", "id": kept[1]["id"]}
    referring = [{"role": "user", "content": prompt}, by_name, answer]
    assert respond(deployment, referring, tools)["output"][0]["content"] == [text]


def test_the_events_of_a_custom_tool_carry_its_text(deployment: Deployment) -> None:
    # given
    prompt = scripted.script({"say": "Well.", "call": "apply", "arguments": {"input": PATCH}})

    # when
    response = respond(deployment, prompt, [CUSTOM])
    events = events_of(followed(deployment.url, response["id"]))

    # then
    kinds = [event["type"] for event in events]
    deltas = [event for event in events if event["type"].endswith("_input.delta")]
    (done,) = [event for event in events if event["type"].endswith("_input.done")]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert "".join(event["delta"] for event in deltas) == done["input"] == PATCH
    assert len(deltas) > 3
    assert added[1]["item"]["input"] == ""
    assert {event["item_id"] for event in [*deltas, done]} == {added[1]["item"]["id"]}
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert events[-1]["response"]["output"] == response["output"]


def test_a_tool_of_the_clients_shows_when_it_is_whole(deployment: Deployment) -> None:
    # given
    prompt = scripted.script({"call": "local_shell", "arguments": {"command": ["ls"]}})

    # when
    response = respond(deployment, prompt, [{"type": "local_shell"}], max_output_tokens=8)
    events = events_of(followed(deployment.url, response["id"]))

    # then
    assert response["status"] == "incomplete"
    assert not any(event["type"].endswith("delta") for event in events)


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ({"type": "custom", "name": "apply"}, "custom_tool_call"),
        ({"type": "apply_patch"}, "apply_patch_call"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "apply"}, {"type": "apply_patch"}],
            },
            "custom_tool_call",
        ),
        ("required", "custom_tool_call"),
    ],
)
def test_any_tool_can_be_chosen(deployment: Deployment, choice: Any, kind: str) -> None:
    # given
    name = "apply_patch" if kind == "apply_patch_call" else "apply"
    arguments = {"type": "delete_file", "path": "a"} if name == "apply_patch" else {"input": PATCH}
    prompt = scripted.script({"call": name, "arguments": arguments})

    # when
    response = respond(deployment, prompt, [CUSTOM, {"type": "apply_patch"}], tool_choice=choice)

    # then
    assert [item["type"] for item in response["output"]] == [kind]


def test_tools_that_are_impossible_are_refused_by_their_path(deployment: Deployment) -> None:
    recursive = {**GRAMMAR, "definition": 'start: "(" start ")" | "x"'}
    tool = {**CUSTOM, "format": recursive}
    for tools, fields, param in [
        ([CUSTOM, CUSTOM], {}, "tools[1].name"),
        ([FAMILY, {**ADD, "name": "agents__add"}], {}, "tools[1].name"),
        ([tool, ADD], {"tool_choice": "required"}, "tools[0].format.definition"),
        ([{**CUSTOM, "format": {"type": "grammar", "syntax": "ebnf"}}], {}, "tools[0].format"),
    ]:
        answer = create(
            deployment.url, **{"model": scripted.MODEL, "input": "a", "tools": tools, **fields}
        )
        assert refused(answer)["param"].startswith(param), answer.text


def test_what_hosted_tools_did_stays_in_the_conversation(deployment: Deployment) -> None:
    # given
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
    prompt = {"role": "user", "content": scripted.script({"say": "a"})}

    # when
    response = respond(deployment, [searched, prompt], [SEARCH])

    # then
    kept = deployment.get(f"/responses/{response['id']}/input_items?order=asc").json()["data"]
    assert kept[0] == {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    assert json.dumps(response["output"]).count('"a"') == 1


def test_a_conversation_is_made_short_and_goes_on(deployment: Deployment) -> None:
    # given
    said = scripted.script({"say": "Seen."}, {"say": "They count sheep."}, {"say": "Onwards."})
    first = respond(deployment, said, [])

    # when
    asked = {"model": scripted.MODEL, "previous_response_id": first["id"], "tools": [ADD]}
    short = deployment.post("/responses/compact", json={**asked, "instructions": "Be brief."})
    body = short.json()
    user, summary = body["output"]
    after = respond(deployment, [summary, {"role": "user", "content": said}], [])
    kept = deployment.get(f"/responses/{after['id']}/input_items?order=asc").json()["data"]

    # then
    assert short.status_code == 200, short.text
    assert body["object"] == "response.compaction"
    assert (user["role"], user["content"][0]["text"]) == ("user", said)
    assert summary["type"] == "compaction"
    assert kept[0] == summary
    tokens = after["usage"]["input_tokens"] - first["usage"]["input_tokens"]
    assert tokens == pytest.approx(
        len("A summary of the conversation so far:\n\nThey count sheep.") / 4, abs=2
    )
    refused(deployment.get(f"/responses/{body['id']}"), 404)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a"}, "model"),
        ({"model": scripted.MODEL}, "input"),
        ({"model": scripted.MODEL, "input": "a", "stream": True}, "stream"),
        (
            {
                "model": scripted.MODEL,
                "input": [{"type": "compaction", "encrypted_content": "gAAA"}],
            },
            "input[0].encrypted_content",
        ),
    ],
)
def test_what_cannot_be_made_short_is_refused(
    deployment: Deployment, body: dict[str, Any], param: str
) -> None:
    assert refused(deployment.post("/responses/compact", json=body))["param"] == param
