"""Raw requests to a gateway's Responses API."""

import time
from collections.abc import Callable
from typing import Any

import httpx2 as httpx

from tests.gateway.responses.logs import parsed

#: What ends every stream.
DONE = b"data: [DONE]\n\n"
#: What the null engine answers to `create`: the first four bytes of "hello".
ECHO = "104 101 108 108 "


def create(url: str, **fields: Any) -> httpx.Response:
    body = {"model": "null", "input": "hello", "max_output_tokens": 4, **fields}
    return httpx.post(f"{url}/responses", json=body, timeout=60)


def created(url: str, **fields: Any) -> dict[str, Any]:
    answer = create(url, **fields)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def retrieve(url: str, response_id: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}/responses/{response_id}", timeout=60)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def followed(url: str, response_id: str, starting_after: int | None = None) -> bytes:
    """The whole stream, to its end."""
    params = {"stream": "true"}
    if starting_after is not None:
        params["starting_after"] = str(starting_after)
    answer = httpx.get(f"{url}/responses/{response_id}", params=params, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.content


def events_of(frames: bytes) -> list[dict[str, Any]]:
    end = frames.rindex(b"id: ")
    assert frames[end:].endswith(DONE)
    return parsed(frames[:end])


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a refusal."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def wait_for(
    url: str, response_id: str, reached: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The response once it is so."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        response = retrieve(url, response_id)
        if reached(response):
            return response
        time.sleep(0.01)
    raise AssertionError(f"the response is still {response['status']}: {text_of(response)!r}")


def has_text(response: dict[str, Any]) -> bool:
    return text_of(response) != ""


def has_ended(response: dict[str, Any]) -> bool:
    return response["status"] not in ("queued", "in_progress")
