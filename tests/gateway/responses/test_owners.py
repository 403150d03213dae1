"""Whose responses they are, and how soon they are served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.gateway.responses.calls import refused
from tests.support.api_keys import bearer, create_key
from tests.support.gateway import Deployment

Ask = Callable[..., httpx.Response]


@pytest.fixture
def guarded(start_own_deployment: Callable[..., Deployment]) -> Deployment:
    return start_own_deployment()


@pytest.fixture
def new_key(guarded: Deployment) -> Callable[..., Ask]:
    """Creates an API key, and says how to create responses with it."""

    def create(*options: str) -> Ask:
        headers = bearer(create_key(guarded, *options)["secret"])

        def ask(**fields: Any) -> httpx.Response:
            body = {"model": "null", "input": "ab", "max_output_tokens": 2, **fields}
            return guarded.post("/responses", json=body, headers=headers)

        return ask

    return create


def test_nobody_goes_on_from_anothers_response(new_key: Callable[..., Ask]) -> None:
    mine, theirs = new_key(), new_key()
    response = mine().json()

    chained = theirs(previous_response_id=response["id"])
    named = theirs(input=[{"type": "item_reference", "id": response["output"][0]["id"]}])

    assert refused(chained, 404)["code"] == "previous_response_not_found"
    assert refused(named, 404)["code"] == "item_not_found"
    assert mine(previous_response_id=response["id"]).status_code == 200


def test_a_key_of_low_priority_is_served_so_without_asking(new_key: Callable[..., Ask]) -> None:
    low = new_key("--max-priority", "low")

    assert low().json()["service_tier"] == "flex"
    assert refused(low(service_tier="priority"), 403)["code"] == "priority_not_allowed"
