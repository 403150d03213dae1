"""An agent of many tool turns while gateways and workers are killed, and what it must do for it.

    python -m tests.chaos.agent --turns 50 --runs 3 --every 2

A scripted model (`tests.support.scripted`) plays the real one's part behind the worker's engine
interface. Through each API the agent's transcript must be that of an undisturbed run, and no turn
may have been answered twice. What an agent does for it is in `_Endpoint.turn` and below: an
idempotency key for each turn, and after a break the same request again, or the rest of the stream.
"""

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anthropic
import httpx2 as httpx
import openai
from openai import OpenAI

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess, WorkerProcess
from tests.support import scripted
from tests.support.nursery import forking


class _Broken(Exception):
    """The stream ended early, or the gateway said that it cannot answer."""


_BREAKS = (
    *(openai.APIConnectionError, openai.InternalServerError),
    *(anthropic.APIConnectionError, anthropic.InternalServerError),
    *(httpx.TransportError, _Broken),
)
_PAUSE_S = 0.05
#: How long an agent tries to go on without any success.
_PATIENCE_S = 90.0

OnEvent = Callable[[], None]
"""called with each event of each stream"""


class Call(NamedTuple):
    name: str
    arguments: str


class Turn(NamedTuple):
    """An answer of the model. Ids differ from run to run and are not in it."""

    text: str
    calls: tuple[Call, ...]
    end: str
    prompt_tokens: int
    deltas: tuple[str, ...]
    """every piece of text and arguments, as it came"""


@dataclass
class Transcript:
    turns: list[Turn] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    breaks: int = 0
    """after which the agent went on"""

    def said(self) -> tuple[list[Turn], list[str]]:
        return self.turns, self.results


# The agent


class Deployment:
    """Gateways and workers, which may be killed: each comes back at its old address."""

    def __init__(self, stack: ExitStack, redis_url: str, queue: str, step_s: float) -> None:
        self.workers = [
            stack.enter_context(
                WorkerProcess(
                    f"{queue}-{name}",
                    redis_url,
                    queue=queue,
                    min_step_s=step_s,
                    lease_s=1,
                    reclaim_interval_s=0.1,
                    **scripted.WORKER,
                )
            )
            for name in "ab"
        ]
        self.gateways = [
            stack.enter_context(GatewayProcess(f"gateway-{name}", redis_url, queue=queue))
            for name in "ab"
        ]
        self.wait_ready()
        self.kills = 0

    def wait_ready(self) -> None:
        for service in (*self.workers, *self.gateways):
            service.wait_ready()

    @property
    def urls(self) -> list[str]:
        return [gateway.url for gateway in self.gateways]

    def kill(self, service: WorkerProcess | GatewayProcess) -> None:
        """SIGKILL, and a new process in its place."""
        service.kill()
        service.start()
        self.kills += 1

    def kill_at_random(self, chance: random.Random) -> None:
        """One whose partner serves: where all are starting there is nobody to be killed."""
        pairs: list[Sequence[WorkerProcess | GatewayProcess]] = [self.workers, self.gateways]
        chance.shuffle(pairs)
        for pair in pairs:
            victim, partner = chance.sample(pair, 2)
            if partner.is_ready():
                self.kill(victim)
                return

    def jobs(self) -> int:
        """How many the gateways know."""
        count, after = 0, ""
        while True:
            page = httpx.get(f"{self.urls[0]}/jobs?limit=100{after}", timeout=90).json()
            count += len(page["data"])
            if not page["has_more"]:
                return count
            after = f"&after={page['data'][-1]['id']}"


class Agent:
    """Calls `add` until the model has said its last word."""

    def __init__(self, urls: Sequence[str], on_event: OnEvent = lambda: None) -> None:
        self._urls = list(urls)
        self._on_event = on_event
        self.transcript = Transcript()

    def run(self, turns: int, key: str) -> Transcript:
        """`key`: of this run; the model calls a tool in all turns but the last."""
        raise NotImplementedError

    def _tried(self, attempt: Callable[[str], Any]) -> Any:
        """The first result of an attempt that does not break off, with the base URL of one gateway
        or another."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return attempt(self._urls[0])
            except _BREAKS:
                if time.monotonic() > until:
                    raise
                self.transcript.breaks += 1
                self._urls.append(self._urls.pop(0))
                time.sleep(_PAUSE_S)

    def _add(self, turn: Turn) -> list[str]:
        """The tools' results, and the turn is over."""
        results = [str(add(**json.loads(call.arguments))) for call in turn.calls]
        self.transcript.turns.append(turn)
        self.transcript.results += results
        return results


def add(a: str | int, b: int) -> int:
    """The one tool."""
    return int(a or 0) + b


_PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


def prompt(turns: int) -> str:
    call = {"say": "Next.", "call": "add", "arguments": {"a": "{result}", "b": 1}}
    return scripted.script({**call, "times": turns - 1}, {"say": "It is {result}."})


class ChatAgent(Agent):
    """Streams chats. After a break it follows the job from the last event that it has; where it
    does not know the job yet, it asks again with the same idempotency key."""

    def run(self, turns: int, key: str) -> Transcript:
        messages: list[Any] = [{"role": "user", "content": prompt(turns)}]
        definition = {"name": "add", "parameters": _PARAMETERS}
        for number in range(turns):
            body = {
                "model": scripted.MODEL,
                "messages": messages,
                "tools": [{"type": "function", "function": definition}],
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            chunks = self._chunks(body, f"{key}-{number}")
            turn, ids = _turn_of_chunks(chunks)
            results = self._add(turn)
            messages += _chat_messages(turn, ids, results)
        return self.transcript

    def _chunks(self, body: dict[str, Any], key: str) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        job = last = ""

        def attempt(base_url: str) -> None:
            nonlocal job, last
            if job:
                path, method, given = f"/jobs/{job}/events", "GET", None
                headers = {"Last-Event-ID": last} if last else {}
            else:
                path, method, given = "/chat/completions", "POST", body
                headers = {"Idempotency-Key": key}
            with httpx.stream(
                method, base_url + path, json=given, headers=headers, timeout=90
            ) as answer:
                if answer.status_code >= 500:
                    raise _Broken(f"status {answer.status_code}")
                answer.raise_for_status()
                job = answer.headers["x-rose-job-id"]
                for last_id, data in _events(answer.iter_lines()):
                    self._on_event()
                    if data == "[DONE]":
                        return
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise _Broken(str(chunk["error"]))
                    chunks.append(chunk)
                    last = last_id
            raise _Broken("the stream has no end")

        self._tried(attempt)
        return chunks


class ResponseAgent(Agent):
    """Streams responses with OpenAI's library. After a break it retrieves the response from the
    last number that it has; where it does not know the response yet, it asks again with the same
    idempotency key. Each turn goes on from the one before."""

    def run(self, turns: int, key: str) -> Transcript:
        previous: str | None = None
        given: Any = prompt(turns)
        for number in range(turns):
            events = self._events(given, previous, f"{key}-{number}")
            response = events[-1].response
            previous = response.id
            turn = _turn_of_events(events)
            ids = [item.call_id for item in response.output if item.type == "function_call"]
            given = [
                {"type": "function_call_output", "call_id": call_id, "output": result}
                for call_id, result in zip(ids, self._add(turn), strict=True)
            ]
        return self.transcript

    def _events(self, given: Any, previous: str | None, key: str) -> list[Any]:
        events: list[Any] = []
        known = ""

        def attempt(base_url: str) -> None:
            nonlocal known
            client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
            stream: Any
            if known:
                stream = client.responses.retrieve(
                    known, stream=True, starting_after=events[-1].sequence_number
                )
            else:
                stream = client.responses.create(
                    model=scripted.MODEL,
                    input=given,
                    previous_response_id=previous,
                    tools=[
                        {
                            "type": "function",
                            "name": "add",
                            "parameters": _PARAMETERS,
                            "strict": False,
                        }
                    ],
                    stream=True,
                    extra_headers={"Idempotency-Key": key},
                )
            for event in stream:
                self._on_event()
                if event.type == "error":
                    raise _Broken(event.message)
                events.append(event)
                if event.type == "response.created":
                    known = event.response.id
            if not events or events[-1].type not in _ENDS:
                raise _Broken("the stream has no end")

        self._tried(attempt)
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(numbers))), numbers
        return events


_ENDS = ("response.completed", "response.incomplete", "response.failed")


class MessagesAgent(Agent):
    """Streams messages with Anthropic's library. After a break it asks again with the same
    idempotency key, and gets all of the answer from the beginning."""

    def run(self, turns: int, key: str) -> Transcript:
        messages: list[Any] = [{"role": "user", "content": prompt(turns)}]
        for number in range(turns):
            message, deltas = self._message(messages, f"{key}-{number}")
            text = "".join(block.text for block in message.content if block.type == "text")
            uses = [block for block in message.content if block.type == "tool_use"]
            calls = tuple(Call(use.name, json.dumps(use.input)) for use in uses)
            end, prompt_tokens = str(message.stop_reason), message.usage.input_tokens
            results = self._add(Turn(text, calls, end, prompt_tokens, tuple(deltas)))
            answers = [
                {"type": "tool_result", "tool_use_id": use.id, "content": result}
                for use, result in zip(uses, results, strict=True)
            ]
            messages.append({"role": "assistant", "content": message.content})
            messages.append({"role": "user", "content": answers})
        return self.transcript

    def _message(self, messages: list[Any], key: str) -> tuple[Any, list[str]]:
        def attempt(base_url: str) -> tuple[Any, list[str]]:
            origin = base_url.removesuffix("/v1")
            client = anthropic.Anthropic(base_url=origin, api_key="none", max_retries=0)
            deltas: list[str] = []
            with client.messages.stream(
                model=scripted.MODEL,
                max_tokens=1000,
                messages=messages,
                tools=[{"name": "add", "input_schema": {**_PARAMETERS, "type": "object"}}],
                extra_headers={"Idempotency-Key": key},
            ) as stream:
                for event in stream:
                    self._on_event()
                    if event.type == "text":
                        deltas.append(event.text)
                    elif event.type == "input_json":
                        deltas.append(event.partial_json)
                    ended = event.type == "message_stop"
                if not ended:
                    raise _Broken("the stream has no end")
                return stream.get_final_message(), deltas

        answer: tuple[Any, list[str]] = self._tried(attempt)
        return answer


AGENTS: dict[str, type[Agent]] = {
    "chat": ChatAgent,
    "responses": ResponseAgent,
    "messages": MessagesAgent,
}


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The `id:` and the data of each event of a stream."""
    last = data = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            last = value
        elif name == "data":
            data = value
        elif not line and data:
            yield last, data
            data = ""


def _turn_of_chunks(chunks: Sequence[dict[str, Any]]) -> tuple[Turn, list[str]]:
    """And the ids of its calls."""
    text: list[str] = []
    deltas: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    ids: list[str] = []
    end = ""
    usage: dict[str, int] = {}
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if delta.get("content"):
                text.append(delta["content"])
                deltas.append(delta["content"])
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    ids.append(call["id"])
                    calls.append((call["function"]["name"], []))
                calls[call["index"]][1].append(call["function"].get("arguments", ""))
                deltas.append(call["function"].get("arguments", ""))
            end = choice["finish_reason"] or end
    made = tuple(Call(name, "".join(pieces)) for name, pieces in calls)
    return Turn("".join(text), made, end, usage["prompt_tokens"], tuple(deltas)), ids


def _chat_messages(turn: Turn, ids: Sequence[str], results: Sequence[str]) -> list[dict[str, Any]]:
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call_id, call in zip(ids, turn.calls, strict=True)
    ]
    answered = [
        {"role": "tool", "tool_call_id": call_id, "content": result}
        for call_id, result in zip(ids, results, strict=True)
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": turn.text}
    return [{**answer, "tool_calls": calls} if calls else answer, *answered]


def _turn_of_events(events: Sequence[Any]) -> Turn:
    response = events[-1].response
    calls = [item for item in response.output if item.type == "function_call"]
    return Turn(
        response.output_text,
        tuple(Call(item.name, item.arguments) for item in calls),
        response.status,
        response.usage.input_tokens,
        tuple(event.delta for event in events if event.type.endswith(".delta")),
    )


# The runs


@contextmanager
def deployed(redis_url: str, queue: str, step_s: float) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(stack, redis_url, queue, step_s)


@contextmanager
def _killing(deployment: Deployment, every_s: float, chance: random.Random) -> Iterator[None]:
    """Meanwhile somebody is killed again and again."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(every_s * chance.uniform(0.5, 1.5)):
            deployment.kill_at_random(chance)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def differences(undisturbed: Transcript, disturbed: Transcript) -> list[str]:
    found = [
        f"turn {number}: {one!r} instead of {other!r}"
        for number, (other, one) in enumerate(zip(undisturbed.turns, disturbed.turns, strict=False))
        if one != other
    ]
    if len(undisturbed.turns) != len(disturbed.turns):
        found.append(f"{len(disturbed.turns)} turns instead of {len(undisturbed.turns)}")
    if undisturbed.results != disturbed.results:
        found.append(f"results: {disturbed.results} instead of {undisturbed.results}")
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.agent", description=__doc__)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between kills")
    parser.add_argument("--step", type=float, default=0.02, help="seconds a token")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--apis", default=",".join(AGENTS), help="separated by commas")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    chance = random.Random(given.seed)
    failures = 0
    with forking(), EmbeddedBroker(fake=False) as broker:
        for api in given.apis.split(","):
            with deployed(broker.url, f"agent-{api}", given.step) as deployment:
                undisturbed = AGENTS[api](deployment.urls).run(given.turns, "quiet")
                for run in range(1, given.runs + 1):
                    known, killed = deployment.jobs(), deployment.kills
                    began = time.monotonic()
                    with _killing(deployment, given.every, chance):
                        transcript = AGENTS[api](deployment.urls).run(given.turns, f"run-{run}")
                    took_s = time.monotonic() - began
                    deployment.wait_ready()
                    found = differences(undisturbed, transcript)
                    if (jobs := deployment.jobs() - known) != given.turns:
                        found.append(f"{jobs} jobs for {given.turns} turns")
                    failures += bool(found)
                    print(
                        f"{api}, run {run}: {given.turns} turns in {took_s:.1f} s, "
                        f"{deployment.kills - killed} kills, {transcript.breaks} breaks: "
                        f"{'; '.join(found) or 'the same transcript'}",
                        flush=True,
                    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
