"""Another language's client: the code of docs/protocol.md, which needs redis and msgpack alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.support.echo import echoed

PROTOCOL_PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


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
    prompt = b"Once upon a time"
    end = {"type": "finished", "index": 40, "reason": "length", "prompt_tokens": len(prompt)}
    text, brace, last = capsys.readouterr().out.partition("{")
    assert text == "".join(f"{token} " for token in echoed(prompt, 40))
    assert ast.literal_eval(brace + last) == end
