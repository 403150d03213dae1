"""What has no effect is told with the answer, in the same places in every API, or refused."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gateway.sdk.deployments import HI
from tests.support.gateway import Deployment

ASKED = {"model": "null", "thinking": {"type": "enabled"}}
APIS: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": HI, "max_tokens": 3},
    "/responses": {"input": "hi", "max_output_tokens": 3},
    "/messages": {"messages": HI, "max_tokens": 3},
}
WARNING = {
    "code": "no_effect",
    "param": "thinking.type",
    "message": "thinking.type has no effect: this model writes no thoughts that are known here",
}


@pytest.fixture(params=APIS)
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_says_what_had_no_effect(deployment: Deployment, path: str, stream: bool) -> None:
    answer = deployment.post(path, json={**ASKED, **APIS[path], "stream": stream})

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-rose-warning"] == WARNING["message"]
    told = list(found(answer.text if stream else answer.json()))
    assert told
    assert all(one == [WARNING] for one in told)


def test_whoever_reads_the_answer_again_is_told_too(deployment: Deployment, path: str) -> None:
    body = {**ASKED, **APIS[path], "stream": True}
    first = deployment.post(path, json=body, headers={"x-rose-on-disconnect": "continue"})

    again = deployment.get(f"/jobs/{first.headers['x-rose-job-id']}/events")

    assert list(found(again.text)) == list(found(first.text))


def test_an_answer_to_which_nothing_is_to_be_said_is_as_ever(
    deployment: Deployment, path: str
) -> None:
    answer = deployment.post(path, json={**APIS[path], "model": "null"})

    assert "x-rose-warning" not in answer.headers
    assert "warnings" not in answer.json()


def test_a_gateway_may_refuse_it(start_deployment: Callable[..., Deployment]) -> None:
    deployment = start_deployment(without_effect="refuse")
    for path, body in APIS.items():
        refused = deployment.post(path, json={**ASKED, **body})
        served = deployment.post(path, json={**ASKED, **body, "thinking": {"type": "disabled"}})

        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == WARNING["message"]
        assert served.status_code == 200


def found(answer: Any) -> Iterator[Any]:
    """All `warnings` in an answer, or in the events of a stream."""
    if isinstance(answer, str):
        for line in answer.splitlines():
            if line.startswith("data: {"):
                yield from found(json.loads(line.removeprefix("data: ")))
        return
    for name, value in answer.items():
        if name == "warnings":
            yield value
        elif isinstance(value, dict):
            yield from found(value)
