"""A model that plays a part: `rose worker` with an engine whose answers follow a script.

The script stands in the conversation, so the tokens are a function of prompt and position, as a
real model's are: whoever takes a job over goes on with the same one. It is the last text between
`<script>` tags that a user has said, a JSON list of steps, one for each answer of the assistant
since then:

    {"call": "add", "arguments": {"a": "{result}", "b": 1}}     call a function
    {"calls": [["add", {...}], ["now", {}]]}                    or several at once
    {"say": "The sum is {result}."}                             end with a text
    {"say": "Let me see.", "call": "now", "arguments": {}}      both
    {"think": "Hm.", "say": "Yes."}                             after a thought
    {..., "times": 50}                                          the same step so often

`{result}` is what the last tool said. Where a grammar makes the calls, they are written as it wants
them. Without a script the model calls its first function, with a word for each text that must be
there, if it was just asked something; without one, without the function of a step, or after the
last step, it says so. It obeys stop texts, but no grammar: what one forbids it cannot show. Its
thoughts are told apart where the worker's `reasoning_format` is `think`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rose.engine_records import FinishReason, SchedulerStats, StepOutput
from rose.errors import InvalidParameter, PromptTooLong
from rose.protocol import ChatMessage, JobSpec
from rose_worker.engine import ModelInfo, Prepared, check_no_adapter
from rose_worker.null_engine import NullEngine
from rose_worker.settings import WorkerSettings
from tests.support.mortal import run_with

MODEL = "scripted"
#: For `WorkerProcess(program=...)`.
PROGRAM = ("tests.support.scripted",)
#: Settings of a worker that plays, for `WorkerProcess`.
WORKER: dict[str, Any] = {"program": PROGRAM, "engine": "null"}

_CONTEXT = 1 << 20
#: Characters of a token.
_TOKEN = 4
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_RESULT = "{result}"

Step = Mapping[str, Any]


def script(*steps: Step) -> str:
    """The text that a message must hold."""
    return f"<script>{json.dumps(steps)}</script>"


def answer_to(job: JobSpec) -> str:
    """All that the model says to a conversation, as its tokens spell it."""
    steps, turn = _part_of(job)
    if not steps and job.tools and job.messages and job.messages[-1].role == "user":
        steps, turn = [_first_call(job.tools[0]["function"])], 0
    if turn >= len(steps):
        return "I have no script." if not steps else "My script has ended."
    step = _filled(steps[turn], _last_result(job.messages))
    calls = step.get("calls", [])
    if "call" in step:
        calls = [[step["call"], step.get("arguments", {})]]
    known = {tool["function"]["name"] for tool in job.tools}
    if unknown := [name for name, _ in calls if name not in known]:
        return f"I have no tool {unknown[0]}."
    if calls and job.sampling.json_schema is not None:
        return json.dumps(calls[0][1])
    objects = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    if calls and job.sampling.grammar is not None and not job.sampling.grammar_triggers:
        return "\n".join(objects)
    thought = f"<think>\n{step['think']}\n</think>\n\n" if "think" in step else ""
    written = [f"<tool_call>\n{one}\n</tool_call>" for one in objects]
    return thought + "\n".join([*([step["say"]] if "say" in step else []), *written])


def _part_of(job: JobSpec) -> tuple[list[Step], int]:
    """The steps, and how many of them have been played."""
    if isinstance(job.prompt, str):
        found = _SCRIPT.findall(job.prompt)
        return (_steps(found[-1]) if found else []), 0
    for number in range(len(job.messages) - 1, -1, -1):
        message = job.messages[number]
        if message.role == "user" and (found := _SCRIPT.findall(message.content)):
            later = job.messages[number + 1 :]
            return _steps(found[-1]), sum(one.role == "assistant" for one in later)
    return [], 0


def _first_call(function: Mapping[str, Any]) -> Step:
    required = function["parameters"].get("required", ())
    return {"call": function["name"], "arguments": dict.fromkeys(required, "word")}


def _steps(text: str) -> list[Step]:
    """Some programs quote what a user says. Raises: InvalidParameter"""
    for read in (json.loads, _unquoted, _without_backslashes):
        with suppress(ValueError, AttributeError):
            return [step for step in read(text) for _ in range(step.get("times", 1))]
    raise InvalidParameter("the script is no list of objects in JSON")


def _unquoted(text: str) -> Any:
    return json.loads(json.loads(f'"{text}"'))


def _without_backslashes(text: str) -> Any:
    return json.loads(text.replace('\\"', '"'))


def _texts(job: JobSpec) -> list[str]:
    return [job.prompt] if isinstance(job.prompt, str) else [one.content for one in job.messages]


def _stopped(text: str, stops: Sequence[str]) -> tuple[str, FinishReason, str | None]:
    """The text before the first stop text, why it ends, and which stop text it was."""
    places = [(text.find(stop), stop) for stop in stops if stop in text]
    if not places:
        return text, "eos", None
    start, stop = min(places)
    return text[:start], "stop", stop


def _last_result(messages: Sequence[ChatMessage]) -> str:
    return next((one.content for one in reversed(messages) if one.role == "tool"), "")


def _filled(value: Any, result: str) -> Any:
    if isinstance(value, str):
        return value.replace(_RESULT, result)
    if isinstance(value, list):
        return [_filled(one, result) for one in value]
    if isinstance(value, dict):
        return {name: _filled(one, result) for name, one in value.items()}
    return value


@dataclass(slots=True)
class _Speech:
    tokens: list[str]
    done: int
    length: int
    end: FinishReason
    stop: str | None


class ScriptedEngine(NullEngine):
    """The id of a token is the number of its first character."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self._context = settings.max_context or _CONTEXT
        name = settings.model or MODEL
        self.model = ModelInfo(
            *(name, self._context, 4, "cpu", "none"),
            fingerprint=name,
            engine="null",
            tool_format="hermes",
            reasoning_format=settings.reasoning_format or "",
        )
        self._speeches: dict[str, _Speech] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._speeches)

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        if job.sampling.logprobs:
            raise InvalidParameter("a script has no log-probabilities")
        check_no_adapter(job, self.model)
        prompt_tokens = 1 + sum(len(text) for text in _texts(job)) // _TOKEN
        room = self._context - prompt_tokens
        if room < 1:
            raise PromptTooLong.of(prompt_tokens, self._context)
        said, end, stop = _stopped(answer_to(job), job.sampling.stop)
        tokens = [said[start : start + _TOKEN] for start in range(0, len(said), _TOKEN)]
        length = min(job.sampling.max_new_tokens, room)
        return Prepared(
            job.id, prompt_tokens, _Speech(tokens, len(generated_ids), length, end, stop)
        )

    def add(self, prepared: Prepared) -> None:
        if prepared.job_id in self._speeches:
            raise InvalidParameter(f"the id {prepared.job_id!r} is in use")
        self._speeches[prepared.job_id] = prepared.handle

    def abort(self, job_id: str) -> None:
        self._speeches.pop(job_id, None)

    def step(self, only: str | None = None) -> list[StepOutput]:
        stepped = {key: value for key, value in self._speeches.items() if only in (None, key)}
        self._step_sequences = len(stepped)
        outputs = [_next(job_id, speech) for job_id, speech in stepped.items()]
        for output in outputs:
            if output.finish_reason is not None:
                del self._speeches[output.request_id]
        return outputs

    def stats(self) -> SchedulerStats:
        return SchedulerStats(running=len(self._speeches), batch_size=self._step_sequences)


def _next(job_id: str, speech: _Speech) -> StepOutput:
    if speech.done >= len(speech.tokens):
        return StepOutput(job_id, speech.done, (), "", speech.end, stop=speech.stop)
    if speech.done >= speech.length:
        return StepOutput(job_id, speech.done, (), "", "length")
    text = speech.tokens[speech.done]
    speech.done += 1
    return StepOutput(job_id, speech.done - 1, (ord(text[0]),), text, None)


if __name__ == "__main__":
    run_with(ScriptedEngine)
