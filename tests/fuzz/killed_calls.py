"""Workers killed within calls: `python -m tests.fuzz.killed_calls 1000`.

A real worker samples calls of each format, from noise and at a temperature above 0, and gets
SIGKILL while they are written. The text must be what another worker writes undisturbed, and every
call must fit its schema.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from rose.formats.registry import TOOL_FORMATS
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_gateway.tools.tools import Choice, ToolPlan, plan_tools
from rose_producer import Client, Job, Request
from tests.fuzz.sampled_calls import FUNCTIONS, calls_of, fits
from tests.support.bench import wait_until
from tests.support.chat_model import write_chat_model
from tests.support.echo import running, serving

StartWorker = Callable[..., WorkerProcess]

#: Of an answer before the worker is killed.
_TOKENS = 12
_MOST_TOKENS = 1500
_BATCH = 30
#: In slow motion, on the real engine.
_WORKER: dict[str, Any] = {"engine": "rose", "device": "cpu", "torch_threads": 1}


class Answer(NamedTuple):
    tool_format: str
    plan: ToolPlan
    request: Request


def answer_of(number: int) -> Answer:
    """One whose text begins with a call, which ends it."""
    tool_format = list(TOOL_FORMATS)[number % len(TOOL_FORMATS)]
    plan = plan_tools(FUNCTIONS, Choice("auto"), tool_format=tool_format, parallel=False)
    sampling: dict[str, Any] = {
        **plan.lazy,
        **plan.form.sampling,
        # Noise begins no call by itself: here the grammar holds from the first token on.
        "grammar": plan.lazy["grammar"].replace("| OTHER)?", ")").replace('| "<|end|>"', ""),
        "grammar_triggers": ("^",),
        "seed": number,
        "temperature": 1.2,
        "max_new_tokens": _MOST_TOKENS,
    }
    return Answer(tool_format, plan, Request([1, 5 + number % 50], sampling=sampling))


def killed(answers: Sequence[Answer], client: Client, start: StartWorker) -> int:
    """Returns how many of them were within a call when their worker died. Raises AssertionError."""
    first = start(min_step_s=0.02, max_batch_size=len(answers), **_WORKER)
    jobs = client.submit_many([answer.request for answer in answers])
    wait_until(lambda: all(_has_begun(job) for job in jobs))
    first.kill()
    within = sum(job.status().status != "finished" for job in jobs)
    second = start(max_batch_size=len(answers), **_WORKER)
    disturbed = [job.result(90) for job in jobs]
    again = client.submit_many([answer.request for answer in answers])
    for answer, job, result, undisturbed in zip(answers, jobs, disturbed, again, strict=True):
        assert result.text == undisturbed.result(90).text, (answer.tool_format, job.id)
        found = list(calls_of(answer.plan, result.text))
        assert all(fits(*call) for call in found), (answer.tool_format, result.text)
        assert found or result.finish_reason == "length", (answer.tool_format, result.text)
    second.kill()
    return within


def _has_begun(job: Job) -> bool:
    return running(job, _TOKENS) or job.status().status == "finished"


def main(number: int) -> None:
    within, names = 0, count()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        model = str(write_chat_model(Path(folder)))
        broker = stack.enter_context(EmbeddedBroker())
        client = stack.enter_context(Client(redis_url=broker.url, queue="calls"))

        def start(**settings: Any) -> WorkerProcess:
            name = f"w{next(names)}"
            given = {"queue": "calls", "model": model, **settings}
            return stack.enter_context(serving(name, broker.url, **given))

        for begin in range(0, number, _BATCH):
            answers = [answer_of(one) for one in range(begin, min(number, begin + _BATCH))]
            within += killed(answers, client, start)
            print(f"{begin + len(answers)} answers, {within} of them killed within their call")
    print("every text is as without the death of its worker, and every call fits")


if __name__ == "__main__":
    main(int(sys.argv[1]))
