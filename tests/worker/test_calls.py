"""Calls of functions, followed by a grammar from their beginning on."""

from pathlib import Path
from typing import Any

from rose.formats.registry import TOOL_FORMATS
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, FinishedEvent
from tests.fuzz.killed_calls import answer_of, killed
from tests.support.chat_model import write_chat_model
from tests.support.echo import StartWorker


def test_a_call_of_any_format_survives_the_death_of_its_worker(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    model = str(write_chat_model(tmp_path))

    def start(**settings: Any) -> WorkerProcess:
        return start_worker(model=model, **settings)

    answers = [answer_of(number) for number in range(len(TOOL_FORMATS))]

    assert killed(answers, client, start) > 0


def test_an_answer_whose_grammar_cannot_be_compiled_is_free_and_says_so(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    start_worker(engine="rose", device="cpu", torch_threads=1)
    lazy = {"grammar": "start: nothing", "grammar_triggers": ("<tool_call>",)}
    # when
    free = client.submit("Once upon", max_new_tokens=5)
    left_out = client.submit("Once upon", max_new_tokens=5, **lazy)
    # then
    assert left_out.result(90).text == free.result(90).text
    *_, last = left_out.stream()
    assert isinstance(last, FinishedEvent)
    assert "nothing" in (last.left_out or "")
