"""How much there may be in foreign JSON, and what it costs to find that out."""

import contextlib
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import check_size, json_object

VALUES = st.recursive(
    st.none() | st.text(alphabet='[]{}"\\a\n') | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"'), inner, max_size=3),
    max_leaves=20,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, inner), default=0)


@given(VALUES)
def test_json_within_the_limit_passes_and_json_beyond_it_does_not(value: Any) -> None:
    body, deep = json.dumps(value).encode(), depth(value)
    check_size(body, max_nesting=deep, name="it")
    if deep:
        with pytest.raises(BadRequest, match="nested deeper"):
            check_size(body, max_nesting=deep - 1, name="it")


@given(st.binary() | st.text('[]{}"\\', max_size=200).map(str.encode))
def test_what_is_no_json_does_no_harm(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        json_object(body, max_nesting=3)


MIB_4 = 4 * 1024 * 1024
CHAT = '"model":"m","messages":[{"role":"user","content":"x"}]'
#: What stands before, what is repeated, what stands after.
HOSTILE = {
    "messages": ('{"model":"m","messages":[', "1", "]}"),
    "empty messages": ('{"model":"m","messages":[', "{}", "]}"),
    "parts": ('{"model":"m","messages":[{"role":"user","content":[', "1", "]}]}"),
    "stop": ("{" + CHAT + ',"stop":[', "1", "]}"),
    "tools": ("{" + CHAT + ',"tools":[', "{}", "]}"),
    "logit_bias": ("{" + CHAT + ',"logit_bias":{', '"%d":""', "}}"),
    "metadata": ("{" + CHAT + ',"metadata":{', '"%d":1', "}}"),
    "unknown": ("{" + CHAT + ",", '"k%d":1', "}"),
    "unknown of a message": ('{"model":"m","messages":[{"role":"user",', '"k%d":1', "}]}"),
    "same": ("{" + CHAT + ",", '"user":"a"', "}"),
    "schema": ("{" + CHAT + ',"guided_json":{', '"%d":{}', "}}"),
}

_PARSE = """
import resource, sys, time
from rose_gateway.chat.schema import UNSUPPORTED, ChatRequest
from rose_gateway.errors import ApiError
from rose_gateway.requests.parsing import parse
body = sys.stdin.buffer.read()
def grown(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, began = grown(), time.process_time()
try:
    parse(ChatRequest, body, UNSUPPORTED)
except ApiError as error:
    assert error.status == 400
print(time.process_time() - began, (grown() - before) / 1024)
"""


@pytest.mark.parametrize("size", [MIB_4, MIB_4 // 8])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_wrong_body_costs_no_more_than_a_right_one(kind: str, size: int) -> None:
    before, item, after = HOSTILE[kind]
    items, length, number = list[str](), len(before) + len(after), 0
    while length < size - 32:
        items.append(item % number if "%" in item else item)
        length, number = length + len(items[-1]) + 1, number + 1
    body = (before + ",".join(items) + after).encode()

    ended = subprocess.run(
        [sys.executable, "-c", _PARSE], input=body, capture_output=True, check=True
    )

    cpu_s, grown_mb = map(float, ended.stdout.split())
    # Before they were counted it took 2 to 15 s and up to 2 GB.
    assert cpu_s < 1
    assert grown_mb < 100


@pytest.mark.parametrize(
    "body",
    [
        {"text": '[{,"' * 200_000},
        {"ids": list(range(300_000))},
        {"text": "\\" * 1_000_000},
        {"list": [{"role": "user", "content": "x"}] * 10_000},
    ],
    ids=["a text of structure", "token ids", "escapes", "messages"],
)
def test_a_large_body_that_somebody_may_need_is_read(body: dict[str, Any]) -> None:
    assert json_object(json.dumps(body).encode(), max_nesting=100) == body
