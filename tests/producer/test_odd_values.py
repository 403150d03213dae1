"""What cannot be right is refused in one line, by an error of the tree, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rose.errors import ConfigurationError, InvalidCursor, InvalidParameter, JobNotFound, RoseError
from rose_producer import Client

_HALF = "half \udc80"
_NOWHERE = "redis://127.0.0.1:1"


def refusal(kind: type[RoseError], use: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        use()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_settings() -> None:
    message = refusal(ConfigurationError, lambda: Client(redis_timeout_s=-1, nosuch=3))
    assert "redis_timeout_s=-1" in message
    assert "nosuch: no such parameter" in message


def test_text_that_is_no_unicode() -> None:
    with Client(redis_url=_NOWHERE) as client:
        assert "prompt" in (message := refusal(InvalidParameter, lambda: client.submit(_HALF)))
        assert "surrogate pair at character 5" in message
        message = refusal(InvalidParameter, lambda: client.submit("a", idempotency_key=_HALF))
        assert "idempotency_key" in message


@pytest.mark.parametrize("job_id", ["", "a b", "a\n", "a" * 81, _HALF, "\0", 17])
def test_ids_that_no_job_can_have(job_id: Any) -> None:
    with Client(redis_url=_NOWHERE) as client:
        assert "an id has" in refusal(JobNotFound, lambda: client.job(job_id))


@pytest.mark.parametrize("cursor", ["x", 2.5, -1])
def test_cursors(cursor: Any) -> None:
    with Client(redis_url=_NOWHERE) as client:
        message = refusal(InvalidCursor, lambda: list(client.job("a").stream(cursor)))
        assert repr(cursor) in message
