"""The chunks of a streamed completion, from the events of a log."""

from __future__ import annotations

import json

from rose.protocol import FinishedEvent, TokenEvent
from rose_gateway.answers import Head
from rose_gateway.completions.output import CompletionChunks
from rose_gateway.completions.terms import CompletionTerms


def test_a_token_whose_text_is_not_certain_yet_brings_a_chunk() -> None:
    """So whoever measures the time between tokens, or resumes after one, sees each of them."""
    chunks = CompletionChunks(CompletionTerms(), Head(["0-a"], "m", 1_700_000_000))
    tokens = [
        TokenEvent(index=n, token_ids=(7,), text=text) for n, text in enumerate(("a", "", "é"))
    ]
    end = FinishedEvent(index=3, reason="length", prompt_tokens=1)

    told = [json.loads(chunks.feed(0, event))["choices"][0] for event in (*tokens, end)]

    assert [choice["text"] for choice in told] == ["a", "", "é", ""]
    assert [choice["finish_reason"] for choice in told] == [None, None, None, "length"]
