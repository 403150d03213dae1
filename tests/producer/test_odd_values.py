"""What cannot be right is refused in one line, by an error of the tree, before anything is sent."""

from collections.abc import Callable
from typing import Any

import pytest

from rose.errors import ConfigurationError, InvalidCursor, InvalidParameter, JobNotFound, RoseError
from rose_producer import Client, ProducerSettings, Request, Tenants

_HALF = "half \udc80"
_NOWHERE = "redis://127.0.0.1:1"


def refusal(kind: type[RoseError], use: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        use()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_wrong_setting_and_an_unknown_one_are_named() -> None:
    message = refusal(ConfigurationError, lambda: Client(redis_timeout_s=-1, nosuch=3))
    assert "redis_timeout_s=-1" in message
    assert "nosuch: no such parameter" in message


def test_an_address_in_the_place_of_settings_is_not_shown() -> None:
    settings: Any = "redis://user:secret@host"
    message = refusal(ConfigurationError, lambda: Client(settings))
    assert "redis_url=" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": None},
        {"prompt": 3},
        {"deadline_s": "soon"},
        {"metadata": 5},
        {"job_id": 5},
        {"sampling": [5]},
        {"owner": b"me"},
        {"tools": 5},
        {"tenant": 5},
        {"tenant": ["a"]},
        {"adapter": 5},
        {"chat_template_kwargs": "x"},
    ],
)
def test_a_value_of_another_type_is_named(given: dict[str, Any]) -> None:
    request = Request(**{"prompt": "a", **given})
    with Client(redis_url=_NOWHERE) as client:
        message = refusal(InvalidParameter, lambda: client.submit_many([request]))
        assert next(iter(given)) in message


@pytest.mark.parametrize("requests", [None, 5, "a prompt", {"prompt": "a"}, Request("a")])
def test_one_request_in_the_place_of_many_is_refused(requests: Any) -> None:
    with Client(redis_url=_NOWHERE) as client:
        message = refusal(InvalidParameter, lambda: client.submit_many(requests))
        assert "in a list" in message


def test_a_time_that_is_no_number_is_shown() -> None:
    timeout_s: Any = "soon"
    with Client(redis_url=_NOWHERE) as client:
        message = refusal(InvalidParameter, lambda: client.job("a").result(timeout_s))
        assert "'soon'" in message


@pytest.mark.parametrize("count", [None, "ten", -1, True, 2**70])
def test_a_count_of_tenants_that_is_none_is_refused(count: Any) -> None:
    settings = ProducerSettings(redis_url=_NOWHERE)
    with Client(settings) as client, Tenants(settings) as tenants:
        assert "count" in refusal(InvalidParameter, lambda: client.tenants(count))
        assert "count" in refusal(InvalidParameter, lambda: tenants.top(count))


@pytest.mark.parametrize("odd", [None, 3, "high", [None]])
def test_limits_and_classes_of_tenants_that_are_none_are_refused(odd: Any) -> None:
    with Tenants(ProducerSettings(redis_url=_NOWHERE)) as tenants:
        assert "limits" in refusal(InvalidParameter, lambda: tenants.set("a", odd))
        assert "classes" in refusal(InvalidParameter, lambda: tenants.set_passing(odd))


def test_a_vocabulary_is_of_a_model() -> None:
    model: Any = None
    with Client(redis_url=_NOWHERE) as client:
        assert "model" in refusal(InvalidParameter, lambda: client.vocabulary(model))


def test_text_that_is_no_unicode_is_refused() -> None:
    with Client(redis_url=_NOWHERE) as client:
        assert "prompt" in (message := refusal(InvalidParameter, lambda: client.submit(_HALF)))
        assert "surrogate pair at character 5" in message
        message = refusal(InvalidParameter, lambda: client.submit("a", idempotency_key=_HALF))
        assert "idempotency_key" in message


@pytest.mark.parametrize("job_id", ["", "a b", "a\n", "a" * 81, _HALF, "\0", 17])
def test_an_id_that_no_job_can_have_is_refused(job_id: Any) -> None:
    with Client(redis_url=_NOWHERE) as client:
        assert "an id has" in refusal(JobNotFound, lambda: client.job(job_id))


@pytest.mark.parametrize("cursor", ["x", 2.5, -1, True])
def test_a_cursor_that_is_none_is_refused(cursor: Any) -> None:
    with Client(redis_url=_NOWHERE) as client:
        message = refusal(InvalidCursor, lambda: list(client.job("a").stream(cursor)))
        assert repr(cursor) in message
