"""What /v1/responses refuses, and what it accepts though it asks for nothing."""

from typing import Any

import pytest

from tests.gateway.responses.calls import ECHO, create, created, refused, text_of
from tests.support.gateway import Deployment


def test_only_background_responses_can_be_cancelled(deployment: Deployment) -> None:
    response_id = created(deployment.url)["id"]

    refused(deployment.post(f"/responses/{response_id}/cancel"))


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_stored_cannot_be_retrieved(deployment: Deployment, stream: bool) -> None:
    answer = create(deployment.url, store=False, stream=stream)
    job_id = answer.headers["x-rose-job-id"]

    for path in ("", "?stream=true", "/input_items"):
        refused(deployment.get(f"/responses/resp_{job_id}{path}"), 404)
    refused(create(deployment.url, previous_response_id=f"resp_{job_id}"), 404)


@pytest.mark.parametrize("path", ["", "/cancel", "/input_items"])
@pytest.mark.parametrize("response_id", ["resp_0-nothing", "nothing", "resp_", "resp_a\u00e9"])
def test_what_is_not_there_is_not_found(
    deployment: Deployment, path: str, response_id: str
) -> None:
    method = "POST" if path == "/cancel" else "GET"

    error = refused(deployment.request(method, f"/responses/{response_id}{path}"), 404)

    assert error["code"] == "not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "other"}, None),
        ({"unknown": 1}, "unknown"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"type": {}, "id": "a"}]}, "input[0]"),
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
        ({"tools": [{"type": "computer"}]}, "tools[0].type"),
        (
            {"tools": [{"type": "custom", "name": "a b"}], "tool_choice": "required"},
            "tools[0].name",
        ),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_choice.type",
        ),
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
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
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
        {"tools": [{"type": "web_search", "external_web_access": True}], "tool_choice": "auto"},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": "none"},
        {"include": ["reasoning.encrypted_content"]},
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"max_tool_calls": 3, "parallel_tool_calls": False},
        {"stream": False, "background": False, "store": True},
    ],
)
def test_what_asks_for_nothing_is_accepted(deployment: Deployment, fields: dict[str, Any]) -> None:
    assert text_of(created(deployment.url, **fields)) == ECHO
