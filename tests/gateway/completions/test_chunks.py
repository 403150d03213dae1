"""The chunks of a streamed completion, from the events of a log."""

import json

import pytest

from rose.engine_records import PromptLogprobs, TokenLogprob
from rose.protocol import FinishedEvent, TokenEvent
from rose_gateway.answers.rendering import AnswerHeader
from rose_gateway.completions.output import CompletionChunks, text_offsets
from rose_gateway.completions.schema import CompletionParameters
from rose_gateway.models.catalogue import Vocabulary


def test_a_token_whose_text_is_not_certain_yet_brings_a_chunk() -> None:
    """So whoever measures the time between tokens, or resumes after one, sees each of them."""
    chunks = CompletionChunks(
        CompletionParameters(), AnswerHeader(["0-a"], "m", 1_700_000_000), Vocabulary()
    )
    tokens = [
        TokenEvent(index=n, token_ids=(7,), text=text) for n, text in enumerate(("a", "", "é"))
    ]
    end = FinishedEvent(index=3, reason="length", prompt_tokens=1)

    told = [json.loads(chunks.feed(0, event))["choices"][0] for event in (*tokens, end)]

    assert [choice["text"] for choice in told] == ["a", "", "é", ""]
    assert [choice["finish_reason"] for choice in told] == [None, None, None, "length"]


def test_an_echo_with_log_probabilities_comes_with_the_first_token() -> None:
    """Then the whole text is there once, however the stream is resumed."""
    parameters = CompletionParameters(echoes=("ab",), logprobs=1)
    vocabulary = Vocabulary([b"a", b"b", b"c"])
    chunks = CompletionChunks(parameters, AnswerHeader(["0-a"], "m", 1_700_000_000), vocabulary)
    prompt = PromptLogprobs((0, 1), (TokenLogprob(-3.5, ((2, -0.5),)),))
    tokens = [
        TokenEvent(
            index=index,
            token_ids=(2,),
            text="c",
            logprobs=(TokenLogprob(-0.25, ((2, -0.25),)),),
            prompt_logprobs=None if index else prompt,
        )
        for index in range(2)
    ]

    first, second = (json.loads(chunks.feed(0, event))["choices"][0] for event in tokens)

    assert chunks.begin() is None
    assert (first["text"], second["text"]) == ("abc", "c")
    assert first["logprobs"] == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, -3.5, -0.25],
        "top_logprobs": [None, {"b": -3.5, "c": -0.5}, {"c": -0.25}],
        "text_offset": [0, 1, 2],
    }
    assert second["logprobs"]["text_offset"] == [3]


@pytest.mark.parametrize(
    ("text", "tokens", "offsets"),
    [
        ("ab c", [b"ab", b" c"], [0, 2]),
        ("€x", ["€".encode()[:2], "€".encode()[2:], b"x"], [0, 0, 1]),
        ("ab", [b"<s>", b" ab"], [0, 0]),  # neither the mark nor the space is in the text
        ("<s>ab", [b"<s>", b"ab"], [0, 3]),
        ("ab", [b"ab"] * 2, [0, 2]),
    ],
)
def test_where_a_prompts_tokens_begin(text: str, tokens: list[bytes], offsets: list[int]) -> None:
    vocabulary = Vocabulary(tokens)
    assert text_offsets(text, [vocabulary.name(i) for i in range(len(tokens))]) == offsets
