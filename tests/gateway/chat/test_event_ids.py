"""`id:` lines are for those who can resume; a client of OpenAI's streams may not know them."""

import pytest

from tests.support.gateway import Deployment


def lines_of(deployment: Deployment, **headers: str) -> list[str]:
    body = {
        "model": "null",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 3,
        "stream": True,
    }
    answer = deployment.post("/chat/completions", json=body, headers=headers)
    return answer.text.splitlines()


def test_a_client_that_says_nothing_gets_what_openai_sends(deployment: Deployment) -> None:
    lines = lines_of(deployment)

    assert [line for line in lines if line and not line.startswith("data: ")] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"accept": "text/event-stream"},
        {"x-rose-on-disconnect": "continue"},
        {"idempotency-key": "once"},
    ],
)
def test_one_that_can_resume_gets_the_place_of_each_event(
    deployment: Deployment, headers: dict[str, str]
) -> None:
    lines = lines_of(deployment, **headers)

    ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
    assert ids[0] == "0-0"
    assert ids[-2:] == ["3-1", "3-3"]  # the end of the choice, and [DONE]
