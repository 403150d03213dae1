"""Prompts are counted and named in tokens by the worker that would answer them."""

from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.api_keys import bearer, create_key
from tests.support.gateway import Deployment

MESSAGES = [{"role": "user", "content": "Once upon a time"}]


def ask(deployment: Deployment, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{deployment.origin}{path}", json={"model": "null", **fields}, timeout=90)


def test_every_api_counts_what_it_would_ask(deployment: Deployment) -> None:
    # given: the null engine's tokens are bytes
    count = len("be kindOnce upon a time")
    system = {"role": "system", "content": "be kind"}
    # then
    message = ask(deployment, "/v1/messages/count_tokens", messages=MESSAGES, system="be kind")
    assert message.json() == {"input_tokens": count}
    response = ask(deployment, "/v1/responses/input_tokens", input=MESSAGES, instructions="be kind")
    assert response.json() == {"object": "response.input_tokens", "input_tokens": count}
    chat = ask(deployment, "/tokenize", messages=[system, *MESSAGES]).json()
    assert (chat["count"], bytes(chat["tokens"])) == (count, b"be kindOnce upon a time")
    # and: nothing is left of it
    assert deployment.get("/jobs").json()["data"] == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}),
        ("/tokenize", {"prompt": "a", "add_special_tokens": False}),
        ("/detokenize", {"tokens": [1]}),  # the null engine has no vocabulary
        ("/detokenize", {"tokens": [-1]}),
        ("/v1/messages/count_tokens", {"messages": []}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES, "max_tokens": 5}),
        ("/v1/responses/input_tokens", {}),
    ],
)
def test_what_cannot_be_counted_is_refused(
    deployment: Deployment, path: str, fields: dict[str, Any]
) -> None:
    assert ask(deployment, path, **fields).status_code == 400


def test_tokens_say_what_was_tokenized(start_deployment: Callable[..., Deployment]) -> None:
    # given
    deployment = start_deployment(worker={"engine": "rose", "torch_threads": 1})
    ours = {"model": "built-in"}
    # when
    made = ask(
        deployment, "/tokenize", **ours, prompt="Once upon a time", return_token_strs=True
    ).json()
    # then
    said = ask(deployment, "/detokenize", **ours, tokens=made["tokens"]).json()
    assert said["prompt"].endswith("Once upon a time")
    assert len(made["token_strs"]) == len(made["tokens"]) == made["count"]
    assert made["max_model_len"] == 1024
    # and: the count is that of the answer's usage
    counted = ask(deployment, "/v1/messages/count_tokens", **ours, messages=MESSAGES).json()
    answered = ask(deployment, "/v1/messages", **ours, messages=MESSAGES, max_tokens=1).json()
    assert counted["input_tokens"] == answered["usage"]["input_tokens"]


def test_tokens_belong_to_who_has_a_key(start_own_deployment: Callable[..., Deployment]) -> None:
    deployment = start_own_deployment()
    secret = create_key(deployment)["secret"]
    url, body = f"{deployment.origin}/tokenize", {"model": "null", "prompt": "a"}

    assert httpx.post(url, json=body).status_code == 401
    assert httpx.post(url, json=body, headers=bearer(secret)).json()["tokens"] == [97]
