"""Another language's client: this file imports redis and msgpack, and follows docs/protocol.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
import redis

PROTOCOL_PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_a_job_is_enqueued_and_streamed_with_redis_and_msgpack_alone(
    raw: redis.Redis, queue: str, start_worker: Callable[..., object]
) -> None:
    # given
    start_worker()
    key = f"rose:{{{queue}:0}}:"
    job = {"v": 1, "id": "0-mine", "prompt": "hello", "sampling": {"max_new_tokens": 40}}
    channel = raw.pubsub()
    channel.subscribe(key + "channel:0-mine")
    assert channel.get_message(timeout=5)["type"] == "subscribe"
    # when
    raw.xadd(key + "jobs:normal", {"job": msgpack.packb(job)})
    cursor, ids, text, last = 0, [], "", None
    while last is None:
        message = channel.get_message(timeout=5)
        if message and msgpack.unpackb(message["data"])["index"] == cursor:
            news = [message["data"]]
        else:
            log = raw.xrange(key + "tokens:0-mine", f"({cursor}-0")
            news = [fields[b"event"] for _, fields in log]
        for event in map(msgpack.unpackb, news):
            assert event["index"] == cursor
            cursor = event["index"] + len(event.get("token_ids", ()))
            if event["type"] == "tokens":
                ids += event["token_ids"]
                text += event["text"]
            else:
                last = event
    # then
    expected = [b"hello"[i % 5] for i in range(40)]
    assert ids == expected
    assert text == "".join(f"{token} " for token in expected)
    assert last == {"type": "finished", "index": 40, "reason": "length", "prompt_tokens": 5}


def test_the_code_in_the_protocol_page_runs(
    raw: redis.Redis,
    queue: str,
    start_worker: Callable[..., object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: the page's own code, on this test's queue and server
    (code,) = re.findall(r"```python\n(.*?)```", PROTOCOL_PAGE.read_text(), re.DOTALL)
    start_worker()
    monkeypatch.setattr(redis, "Redis", lambda **_: raw)
    # when
    exec(code.replace("{default:0}", f"{{{queue}:0}}"))
    # then
    printed = capsys.readouterr().out
    assert printed.startswith("79 110 99 101 ")
    assert "'reason': 'length'" in printed
