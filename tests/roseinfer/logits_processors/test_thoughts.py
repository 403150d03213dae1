"""What must be JSON, or match something, may begin with a thought."""

from typing import Any

import pytest

from rose.errors import InvalidParameter
from rose.formats.families.harmony import THOUGHT_TAGS
from rose.sampling import SamplingParams
from roseinfer.sessions.factory import SessionFactory
from roseinfer.sessions.session import InferenceSession
from tests.roseinfer.models import byte_tokenizer

THINK = ("<think>", "</think>")
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
CONSTRAINTS: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": SCHEMA}, '{"a": 1}'),
    ({"regex": "a/b+"}, "a/bb"),
    ({"grammar": 'start: "<" start ">" | "x"'}, "<<x>>"),
]


def session(
    text: str, constraint: dict[str, Any], *, special: bool, prompt: str = "", **more: Any
) -> InferenceSession:
    """One that has said `text`."""
    tokenizer = byte_tokenizer()
    if special:
        names = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>"]
        tokenizer.add_special_tokens({"additional_special_tokens": [*THINK, *names]})
    factory = SessionFactory(
        tokenizer, vocab_size=len(tokenizer), eos_token_ids={257}, context_length=4096
    )
    params = SamplingParams(**constraint, **more, shown_prompt_end=("<think>",))
    return factory.new_session(
        [1, *tokenizer.encode(prompt, add_special_tokens=False)],
        params=params,
        generated_ids=tokenizer.encode(text, add_special_tokens=False),
    )


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("constraint", "text"), CONSTRAINTS)
def test_a_grammar_begins_behind_the_thought(
    constraint: dict[str, Any], text: str, *, special: bool
) -> None:
    for thought in ("", "<think>x < y {</think>\n\n", "<think></think>"):
        assert (
            session(thought + text, constraint, special=special, thought_tags=THINK).error is None
        )
    in_prompt = session(
        f"Hm.\n</think>{text}", constraint, special=special, thought_tags=THINK, prompt="<think>\n"
    )
    assert in_prompt.error is None
    for wrong in ("Hm", "<think>Hm</think>no", f"<think></think><think></think>{text}"):
        with pytest.raises(InvalidParameter):
            session(wrong, constraint, special=special, thought_tags=THINK)


@pytest.mark.parametrize("special", [False, True])
def test_a_channel_of_thoughts_comes_before_the_final_one(*, special: bool) -> None:
    opening, close = THOUGHT_TAGS
    constraint = {"json_schema": SCHEMA, "thought_tags": THOUGHT_TAGS}

    assert session(f'{opening}Hm.{close}{{"a": 1}}', constraint, special=special).error is None
    with pytest.raises(InvalidParameter):
        session(f"{opening}Hm.{close}no", constraint, special=special)


def test_an_error_is_about_the_grammar_as_it_was_given() -> None:
    constraint = {"grammar": "start: nothing"}
    with pytest.raises(InvalidParameter) as plain:
        session("", constraint, special=False)
    with pytest.raises(InvalidParameter) as behind_thought:
        session("", constraint, special=False, thought_tags=THINK)

    assert str(behind_thought.value) == str(plain.value)
