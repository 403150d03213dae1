"""Children of the preparer that are ended."""

import asyncio
from typing import Any

import pytest

from rose.protocol import ChatMessage, JobSpec, encode_job
from rose_worker import preparation
from rose_worker.preparation import Preparation, PreparedJob, Preparer
from tests.roseinfer.models import byte_tokenizer
from tests.support.greedy_model import HANGS, TEMPLATE

_LIMIT_S = 30


def job(content: str) -> tuple[JobSpec, bytes]:
    spec = JobSpec(id="0-a", prompt=(ChatMessage(role="user", content=content),))
    return spec, encode_job(spec)


def test_nobody_waits_until_the_system_has_ended_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: one that is told to end, and goes on
    monkeypatch.setattr(preparation, "_PROMPT_S", 10.0 * _LIMIT_S)
    monkeypatch.setattr(preparation, "_LONG_TURNS", 0)
    kill, told = preparation._Child.kill, asyncio.Event()
    children: list[Any] = []

    def note(child: Any) -> None:
        children.append(child)
        told.set()

    monkeypatch.setattr(preparation._Child, "kill", note)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE

    async def prepared() -> PreparedJob:
        hung = asyncio.create_task(source.prepare(*job(HANGS)))
        await asyncio.wait_for(told.wait(), _LIMIT_S)
        # No other has to wait for a long turn, of which there is none.
        monkeypatch.setattr(preparation, "_SHORT_S", _LIMIT_S)
        try:
            # when
            return await asyncio.wait_for(source.prepare(*job("hello")), _LIMIT_S)
        finally:
            hung.cancel()
            for child in children:
                kill(child)
            await asyncio.wait(source._reaping)
            source.close()

    preparer = Preparer()
    try:
        preparer.load(tokenizer, 300, [257])
        source = Preparation(preparer)
        found = asyncio.run(prepared())
    finally:
        preparer.close()
    # then
    assert found.spec.token_ids == tuple(tokenizer.encode("hello"))
