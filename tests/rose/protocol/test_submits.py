"""A submit: enqueued once, and refused where the model cannot hold it."""

import pytest

from rose.errors import PromptTooLong
from tests.support.bench import Bench


def test_submit_is_idempotent_by_key_and_by_id(bench: Bench) -> None:
    # when
    first = bench.client.submit("x", idempotency_key="order 7")
    again = bench.client.submit("y", idempotency_key="order 7")
    same_id = bench.client.submit("z", job_id=first.id)
    # then
    assert first.id == again.id == same_id.id
    assert bench.lengths() == [0, 1, 0]


def test_submit_refuses_what_the_model_cannot_hold(bench: Bench) -> None:
    # given
    facts = {"name": "m", "context_tokens": 10, "max_bytes_per_token": 4}
    bench.redis.hset(bench.partition.model, mapping=facts)
    # then: exact for ids, a certain lower bound for text
    with pytest.raises(PromptTooLong, match="10"):
        bench.client.submit([1] * 10)
    with pytest.raises(PromptTooLong):
        bench.client.submit("x" * 37)
    bench.client.submit([1] * 9)
    bench.client.submit("x" * 36)
    # and where it is not certain, the worker decides
    bench.redis.hset(bench.partition.model, "max_bytes_per_token", "")
    bench.client.submit("x" * 400)
