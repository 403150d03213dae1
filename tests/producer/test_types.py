"""What a type checker says of calls of the client, and that it knows every parameter."""

from pathlib import Path
from typing import get_type_hints

from mypy import api

from rose.sampling import SamplingOptions, SamplingParams
from rose_producer import AsyncClient, Client, ProducerSettings
from rose_producer.settings import ProducerOptions

_HEAD = """
from rose.errors import QueueFull
from rose_producer import AsyncClient, ChatMessage, Client, Priority, Request, SamplingParams

c = Client()
a = AsyncClient()
j = c.job("0-x")
"""

RIGHT = """
Client(redis_url="redis://h", queue="q")
Client(partitions=4, tenant="t", redis_timeout_s=1)
Client(max_queued_jobs=None, reconnect_timeout_s=2.5)
AsyncClient(redis_url="redis://h", poll_interval_s=1.0, max_poll_interval_s=9.0)
c.submit("a")
c.submit([1, 2, 3])
c.submit([{"role": "user", "content": "x"}])
c.submit([ChatMessage(role="user", content="x")])
c.submit("a", max_new_tokens=5)
c.submit("a", temperature=0.7, top_p=0.9, top_k=4, min_p=0.1)
c.submit("a", temperature=1)
c.submit("a", top_k=None, seed=None)
c.submit("a", seed=7)
c.submit("a", stop=["x"])
c.submit("a", stop=("x", "y"), stop_token_ids=[1])
c.submit("a", ignore_eos=True, min_new_tokens=3)
c.submit("a", repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=1)
c.submit("a", no_repeat_ngram_size=3)
c.submit("a", logit_bias={5: 1.5})
c.submit("a", logit_bias=[(5, 1.5)])
c.submit("a", logprobs=True, top_logprobs=2, prompt_logprobs=True)
c.submit("a", json_schema={"type": "object"})
c.submit("a", json_schema="{}")
c.submit("a", regex="a+")
c.submit("a", grammar="start: 'a'")
c.submit("a", priority="high")
c.submit("a", priority=Priority.LOW)
c.submit("a", deadline_s=3, metadata={"k": 1, "l": None, "m": True})
c.submit("a", idempotency_key="k", job_id="0-a", owner="me", record=b"x")
c.submit("a", tools=[{"type": "function"}], chat_template_kwargs={"enable_thinking": False})
c.submit("a", tenant="t", adapter="l", cache_salt="s")
c.submit_many(["a", Request("b"), [1]])
c.submit_many(Request(p, priority="low") for p in ("a", "b"))
c.submit_many([Request("b", sampling={"max_new_tokens": 3})])
c.submit("a").result(timeout_s=3).text.upper()
[event.index + 1 for event in j.stream()]
for event in j.stream(cursor=3, timeout_s=1.0): print(event.is_terminal)
(j.status().tokens + 1, j.cancel() is True)
c.queue_status().waiting
SamplingParams(max_new_tokens=3, stop=("x",)).divisor + 1.0
"""

WRONG = """
Client(redis_ulr="redis://h")
Client(partitions="4")
Client(queue=4)
Client("redis://h")
AsyncClient(timeout=3)
c.submit()
c.submit(3)
c.submit(None)
c.submit("a", 5)
c.submit("a", max_tokens=5)
c.submit("a", max_new_tokens="hot")
c.submit("a", max_new_tokens=1.5)
c.submit("a", max_new_tokens=None)
c.submit("a", temperature="hot")
c.submit("a", tempreature=0.5)
c.submit("a", top_k=1.5)
c.submit("a", seed="x")
c.submit("a", stop="x")
c.submit("a", stop=[1])
c.submit("a", stop_token_ids=["x"])
c.submit("a", ignore_eos="yes")
c.submit("a", logit_bias={"5": 1.5})
c.submit("a", logprobs="all")
c.submit("a", json_schema=3)
c.submit("a", regex=b"a+")
c.submit("a", priority="urgent")
c.submit("a", priority=1)
c.submit("a", deadline_s="3")
c.submit("a", metadata={"k": []})
c.submit("a", record="text")
c.submit("a", tools={"type": "function"})
c.submit("a", n=2)
c.submit_many("a", max_new_tokens=3)
c.submit_many([Request()])
c.submit_many([Request("a", priority="urgent")])
c.submit("a").result(timeout="3")
j.stream(cursor="3")
[event.tokens for event in j.stream()]
j.status().tokns
async def f() -> str: return a.submit("a").id
"""


def wrong_lines(folder: Path, lines: str) -> tuple[int, set[int]]:
    """How many lines there are, and in which of them, from 0, mypy sees a mistake."""
    program = folder / "program.py"
    program.write_text(_HEAD + lines.strip() + "\n")
    output, mistaken, _ = api.run(["--strict", str(program)])
    assert not mistaken
    assert "1 source file" in output
    first = _HEAD.count("\n") + 1
    found = (line.split(":")[1] for line in output.splitlines() if ": error:" in line)
    return len(lines.strip().splitlines()), {int(number) - first for number in found}


def test_forty_right_calls_pass_mypy(tmp_path: Path) -> None:
    count, wrong = wrong_lines(tmp_path, RIGHT)
    assert (count, wrong) == (40, set())


def test_forty_wrong_calls_do_not(tmp_path: Path) -> None:
    count, wrong = wrong_lines(tmp_path, WRONG)
    assert (count, wrong) == (40, set(range(40)))


def test_each_parameter_and_setting_has_a_type() -> None:
    assert set(get_type_hints(SamplingOptions)) == set(SamplingParams.model_fields)
    assert set(get_type_hints(ProducerOptions)) == set(ProducerSettings.model_fields)


def test_help_names_each_parameter() -> None:
    for submit in (Client.submit, AsyncClient.submit):
        assert submit.__doc__ is not None
        assert not [name for name in SamplingParams.model_fields if name not in submit.__doc__]
