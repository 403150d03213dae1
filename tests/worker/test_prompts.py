"""The preparer reads a prompt as the worker's own tokenizer does."""

import json
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from rose.protocol import ChatMessage, JobSpec, encode_job
from rose_worker import preparer
from rose_worker.prompts import PromptModel, prompt_ids
from roseinfer.checkpoints.tokenizer import load_tokenizer
from tests.support.chat_model import write_chat_model
from tests.support.greedy_model import write_model

TEXTS = ["Once", " two  spaces", "1234 äöü e\u0301", "<|end|> is no end", "a\n\n\tb", "🦊"]


def write_plain_model(folder: Path) -> Path:
    return write_model(folder, "{% for message in messages %}{{ message.content }}{% endfor %}")


@pytest.mark.parametrize("write", [write_chat_model, write_plain_model])
def test_the_preparer_and_the_worker_read_the_same_ids(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    # given
    folder = write(tmp_path / "model")
    tokenizer = load_tokenizer(str(folder))
    model = PromptModel(json.loads(preparer.describe(tokenizer, len(tokenizer), [0])))
    for text in TEXTS:
        for prompt in (text, (ChatMessage(role="user", content=text),)):
            # when
            job = JobSpec(id="0-a", prompt=prompt)
            kind, answer = model.prepare(preparer.PROMPT, encode_job(job))
            # then
            assert kind == preparer.IDS
            assert array("i", answer).tolist() == prompt_ids(job, tokenizer)
