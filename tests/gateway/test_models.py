"""GET /v1/models: what workers announce."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import openai
import pytest

from tests.support.api_keys import bearer, create_key
from tests.support.gateway import RunningDoor


def test_a_model_is_what_its_workers_announce(door: RunningDoor) -> None:
    with door.openai() as ai:
        (listed,) = ai.models.list().data

        assert ai.models.retrieve("null") == listed
    assert (listed.id, listed.object, listed.owned_by) == ("null", "model", "roseinfer")
    assert listed.model_extra is not None
    assert listed.model_extra["context_length"] == 1 << 20
    assert listed.model_extra["queue"] == door.queue


def test_an_unknown_model_is_not_found(door: RunningDoor) -> None:
    with door.openai() as ai, pytest.raises(openai.NotFoundError) as refused:
        ai.models.retrieve("a/b")

    assert refused.value.code == "model_not_found"


def test_a_key_sees_the_models_that_it_may_use(start_own_door: Callable[..., RunningDoor]) -> None:
    door = start_own_door(aliases='{"gpt": "null", "other": "null"}')
    secrets = [
        create_key(door, *options)["secret"]
        for options in ((), ("--model", "null"), ("--model", "gpt"), ("--model", "none"))
    ]

    seen = []
    for secret in secrets:
        with door.openai(api_key=secret) as ai:
            seen.append([model.id for model in ai.models.list()])

    assert seen == [["gpt", "null", "other"], ["gpt", "null", "other"], ["gpt"], []]
    with door.openai(api_key=secrets[2]) as ai:
        assert ai.models.retrieve("gpt").id == "gpt"
        with pytest.raises(openai.NotFoundError):
            ai.models.retrieve("other")


def test_a_key_follows_and_cancels_its_own_jobs_alone(
    start_own_door: Callable[..., RunningDoor],
) -> None:
    door = start_own_door()
    mine, theirs = (bearer(create_key(door)["secret"]) for _ in range(2))
    body = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    made = httpx2.post(f"{door.url}/chat/completions", json=body, headers=mine, timeout=90)
    url = f"{door.url}/jobs/{made.headers['x-rose-job-id']}"

    for method, tail in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
        assert httpx2.request(method, url + tail, headers=mine, timeout=90).status_code == 200
        assert httpx2.request(method, url + tail, headers=theirs, timeout=90).status_code == 404
