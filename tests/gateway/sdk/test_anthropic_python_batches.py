"""Batches of messages by anthropic-python, unmodified: create, wait, read."""

import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types.messages import MessageBatch

from tests.gateway.sdk.deployments import ECHO, SLOW, Deployment
from tests.support.time_limit import TimeLimit

_LIMIT_S = 120
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture
def claude(deployment: Deployment) -> Iterator[Anthropic]:
    url = deployment.url.removesuffix("/v1")
    with Anthropic(base_url=url, api_key="none", timeout=90, max_retries=0) as client:
        yield client


def asked(custom_id: str, **params: Any) -> Any:
    return {"custom_id": custom_id, "params": {"model": ECHO, **HI, **params}}


def ended(claude: Anthropic, batch: MessageBatch) -> MessageBatch:
    limit = TimeLimit(_LIMIT_S)
    while batch.processing_status != "ended":
        assert not limit.passed, batch
        time.sleep(0.1)
        batch = claude.messages.batches.retrieve(batch.id)
    return batch


def test_every_request_of_a_batch_has_a_result(claude: Anthropic) -> None:
    # when
    batch = claude.messages.batches.create(
        requests=[asked("a"), asked("b", max_tokens=0), asked("c", stop_sequences=["7"])]
    )
    assert batch.id.startswith("msgbatch_")
    assert batch.request_counts.processing == 3
    with pytest.raises(anthropic.AnthropicError):
        claude.messages.batches.results(batch.id)
    batch = ended(claude, batch)
    # then
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (2, 1, 0)
    results = {one.custom_id: one.result for one in claude.messages.batches.results(batch.id)}
    answered = results["a"]
    assert answered.type == "succeeded"
    assert answered.message.content[0].to_dict() == {"type": "text", "text": "72 105 "}
    assert answered.message.usage.service_tier == "batch"
    refused = results["b"]
    assert refused.type == "errored"
    assert refused.error.error.type == "invalid_request_error"
    assert "max_tokens" in refused.error.error.message
    assert results["c"].type == "succeeded"


def test_a_cancelled_batch_says_which_requests_were_not_answered(claude: Anthropic) -> None:
    # given
    batch = claude.messages.batches.create(
        requests=[asked("long", model=SLOW, max_tokens=5000), asked("wrong", max_tokens=0)]
    )
    while not claude.messages.batches.retrieve(batch.id).request_counts.errored:
        time.sleep(0.1)
    # when
    assert claude.messages.batches.cancel(batch.id).cancel_initiated_at is not None
    batch = ended(claude, batch)
    # then
    counts = batch.request_counts
    assert (counts.canceled, counts.errored, counts.succeeded) == (1, 1, 0)
    results = {one.custom_id: one.result.type for one in claude.messages.batches.results(batch.id)}
    assert results == {"long": "canceled", "wrong": "errored"}


def test_batches_are_listed_page_by_page(claude: Anthropic) -> None:
    made = [claude.messages.batches.create(requests=[asked("a")]).id for _ in range(3)]

    listed = [batch.id for batch in claude.messages.batches.list(limit=2)]

    assert listed[:3] == made[::-1]


def test_what_is_no_batch_is_refused(claude: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.retrieve("msgbatch_nothing")
    with pytest.raises(anthropic.BadRequestError, match="custom_id"):
        claude.messages.batches.create(requests=[asked("a"), asked("a")])
    with pytest.raises(anthropic.BadRequestError, match="custom_id"):
        claude.messages.batches.create(requests=[asked("a b")])
