"""The gateway's container: its port on loopback, and a response that outlives it and a worker."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.compose.stack import Stack
from tests.support.bench import wait_until

ASKED = {"model": "built-in", "input": "Tell me a story about a cat.", "temperature": 0}
#: Events that a client has when it is cut off: the response runs.
SEEN = 20


def events(url: str, asked: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    body = None if asked is None else json.dumps(asked).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))


def text(seen: list[dict[str, Any]]) -> str:
    return "".join(one["delta"] for one in seen if one["type"] == "response.output_text.delta")


def models(stack: Stack) -> set[str]:
    with urllib.request.urlopen(f"{stack.api_url}/models", timeout=10) as reply:
        return {model["id"] for model in json.load(reply)["data"]}


def test_the_gateway_is_on_loopback_and_lists_the_model(stack: Stack) -> None:
    wait_until(lambda: models(stack) == {"built-in"}, 60)
    (gateway,) = stack.ids("gateway")
    bindings = stack.inspect(gateway)["HostConfig"]["PortBindings"].values()
    assert {one["HostIp"] for binding in bindings for one in binding} == {"127.0.0.1"}


def test_a_response_outlives_the_gateway_and_a_worker(stack: Stack) -> None:
    # given
    wait_until(lambda: models(stack) == {"built-in"}, 60)
    whole = text(list(events(f"{stack.api_url}/responses", ASKED | {"stream": True})))
    asked = ASKED | {"stream": True, "background": True}
    stream = events(f"{stack.api_url}/responses", asked)
    seen = [next(stream) for _ in range(SEEN)]
    response = seen[0]["response"]["id"]
    (gateway,), (worker, _) = stack.ids("gateway"), stack.ids("worker")
    # when
    stack.do("kill", gateway, worker)
    stack.do("start", gateway)
    wait_until(lambda: stack.health(gateway) == "healthy", 120)
    # then: it goes on after what was seen, without a seam
    after = seen[-1]["sequence_number"]
    rest = list(events(f"{stack.api_url}/responses/{response}?stream=true&starting_after={after}"))
    assert [one["sequence_number"] for one in seen + rest] == list(range(len(seen + rest)))
    assert rest[-1]["type"] == "response.completed"
    assert text(seen + rest) == whole
