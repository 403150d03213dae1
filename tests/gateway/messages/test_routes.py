"""/v1/messages over HTTP: its errors, keys and streams, as Anthropic's clients read them."""

import json
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.api_keys import bearer, create_key
from tests.support.gateway import Deployment

HI = [{"role": "user", "content": "hi"}]


def create(deployment: Deployment, **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", {})
    body = {"model": "null", "max_tokens": 4, "messages": HI, **fields}
    return deployment.post("/messages", json=body, headers=headers)


def refused(answer: httpx.Response, status: int, kind: str) -> str:
    """The message of an error in Anthropic's shape."""
    body = answer.json()
    assert answer.status_code == status, body
    assert body["request_id"] == answer.headers["request-id"]
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == kind
    message: str = body["error"]["message"]
    return message


def events(stream: httpx.Response) -> list[dict[str, Any]]:
    lines = stream.text.split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_a_message_is_answered(deployment: Deployment) -> None:
    answer = create(deployment)
    message = answer.json()

    assert message["id"] == f"msg_{answer.headers['x-rose-job-id']}"
    assert message["content"] == [{"type": "text", "text": "104 105 104 105 "}]
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["input_tokens"] == 2


def test_a_stream_is_resumed_at_any_event(deployment: Deployment) -> None:
    stream = create(deployment, stream=True)
    whole = events(stream)
    path = f"/jobs/{stream.headers['x-rose-job-id']}/events"

    for number in range(len(whole) - 1):
        rest = deployment.get(path, headers={"last-event-id": str(number)})
        assert events(rest) == whole[number + 1 :]
    done = deployment.get(path, headers={"last-event-id": str(len(whole) - 1)})
    assert done.status_code == 204
    assert deployment.get(path, headers={"last-event-id": "1-0"}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_worker_refuses_has_a_status_of_its_own(
    deployment: Deployment, stream: bool
) -> None:
    # given: the null engine has no grammars
    answer = create(deployment, regex="a+", stream=stream)

    assert "grammars" in refused(answer, 400, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"unknown": 1}, "unknown"),
        ({"stop": "x"}, "stop_sequences"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
        (
            {"tools": [{"type": "web_search_20260901", "name": "web_search"}]},
            "tools[0]: 'web_search_20260901'",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f g", "input_schema": {"type": "object"}}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"headers": {"anthropic-version": "2023-01-01"}}, "anthropic-version"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    deployment: Deployment, fields: dict[str, Any], said: str
) -> None:
    assert said in refused(create(deployment, **fields), 400, "invalid_request_error")


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"anthropic-version": "2023-06-01", "anthropic-beta": "some-beta-2026-01-01"}},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"metadata": {"user_id": "somebody"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"output_config": {"effort": "high"}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {
            "service_tier": "standard_only",
            "speed": "standard",
            "mcp_servers": [],
            "container": None,
        },
        {"tool_choice": {"type": "none"}, "tools": [{"name": "f", "input_schema": {}}]},
    ],
)
def test_what_asks_for_nothing_is_accepted(deployment: Deployment, fields: dict[str, Any]) -> None:
    assert create(deployment, **fields).status_code == 200


def test_an_unknown_model_is_told_which_there_are(deployment: Deployment) -> None:
    said = refused(create(deployment, model="claude-opus-9"), 404, "not_found_error")

    assert "null" in said
    assert "ROSE_GATEWAY_ALIASES" in said


def test_an_unknown_path_is_refused_in_the_same_shape(deployment: Deployment) -> None:
    refused(deployment.get("/messages/some/path"), 404, "not_found_error")


def test_a_pattern_maps_all_names_that_begin_so(
    start_deployment: Callable[..., Deployment],
) -> None:
    aliases = {"claude-*": "null", "claude-haiku-*": "nobody"}
    deployment = start_deployment(aliases=json.dumps(aliases))

    assert create(deployment, model="claude-opus-9").json()["model"] == "claude-opus-9"
    refused(create(deployment, model="claude-haiku-9"), 404, "not_found_error")
    assert [m["id"] for m in deployment.get("/models").json()["data"]] == ["null"]


def test_keys_limits_and_sizes_are_told_as_anthropics_are(
    start_own_deployment: Callable[..., Deployment],
) -> None:
    # given
    deployment = start_own_deployment(max_body_bytes=2000)
    secret = create_key(deployment, "--requests-per-minute", "1")["secret"]
    # then
    assert "x-api-key" in refused(create(deployment), 401, "authentication_error")
    refused(create(deployment, headers=bearer("wrong")), 401, "authentication_error")
    refused(create(deployment, headers={"x-api-key": "wrong"}), 401, "authentication_error")
    too_large = create(deployment, system="x" * 2000, headers={"x-api-key": secret})
    refused(too_large, 413, "request_too_large")
    # when
    answer = create(deployment, headers={"x-api-key": secret})
    # then
    assert answer.status_code == 200
    assert answer.headers["anthropic-ratelimit-requests-limit"] == "1"
    assert answer.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert answer.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    again = create(deployment, headers=bearer(secret))
    refused(again, 429, "rate_limit_error")
    assert int(again.headers["retry-after"]) > 0
