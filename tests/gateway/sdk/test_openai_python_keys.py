"""API keys through openai-python: what each refusal is raised as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.api_keys import create_key
from tests.support.gateway import RunningDoor

HI: dict[str, Any] = {
    "model": "null",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 3,
}


@pytest.fixture
def door(start_own_door: Callable[..., RunningDoor]) -> RunningDoor:
    return start_own_door()


def client(door: RunningDoor, *options: str) -> OpenAI:
    """Of a key that is made now."""
    return door.openai(api_key=create_key(door, *options)["secret"])


def test_an_unknown_key_is_an_authentication_error(door: RunningDoor) -> None:
    create_key(door)

    with (
        door.openai(api_key="rose-000000000000-not-a-secret-of-anybody") as ai,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        ai.models.list()

    assert (refused.value.status_code, refused.value.code) == (401, "invalid_api_key")


def test_what_a_key_may_not_use_is_a_permission_error(door: RunningDoor) -> None:
    with client(door, "--model", "another") as ai:
        with pytest.raises(openai.PermissionDeniedError):
            ai.chat.completions.create(**HI)
        assert ai.models.list().data == []


def test_another_key_s_response_is_not_found(door: RunningDoor) -> None:
    with client(door) as mine, client(door) as theirs:
        response = mine.responses.create(model="null", input="Hi", max_output_tokens=3)

        for ask in (
            theirs.responses.retrieve,
            theirs.responses.cancel,
            theirs.responses.delete,
            theirs.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError):
                ask(response.id)
        assert mine.responses.retrieve(response.id).id == response.id


def test_a_key_over_its_limit_is_told_when_to_come_again(door: RunningDoor) -> None:
    with client(door, "--requests-per-minute", "1") as ai:
        first = ai.chat.completions.with_raw_response.create(**HI)
        with pytest.raises(openai.RateLimitError) as refused:
            ai.chat.completions.create(**HI)

    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    headers = refused.value.response.headers
    assert refused.value.code == "rate_limit_exceeded"
    assert 0 < int(headers["retry-after"]) <= 60


def test_an_idempotency_key_with_another_body_is_a_conflict(door: RunningDoor) -> None:
    with client(door) as ai:
        once = {"Idempotency-Key": "once"}
        first = ai.chat.completions.create(**HI, extra_headers=once)

        assert ai.chat.completions.create(**HI, extra_headers=once).id == first.id
        with pytest.raises(openai.ConflictError):
            ai.chat.completions.create(**{**HI, "max_tokens": 4}, extra_headers=once)
