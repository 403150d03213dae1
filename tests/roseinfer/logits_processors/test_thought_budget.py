"""A thought that takes too long is ended as its format ends thoughts, and the answer goes on."""

import re
from typing import Any

import pytest

from rose.errors import InvalidParameter
from rose.formats.registry import parser_of, shown_special, thought_ends
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from roseinfer.logits_processors.thought_budget import ThoughtBudget
from tests.roseinfer.models import byte_tokenizer, run_alone, run_together, text, tiny_llama, tokens

PROMPT = "Why?<think>\n"
DRAWN = {"temperature": 1.5, "ignore_eos": True, "max_new_tokens": 90}


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    return InferenceEngine.from_model(tiny_llama(), byte_tokenizer())


def limited(budget: int | None, seed: int = 0, **more: Any) -> SamplingParams:
    wanted = {"thought_format": "think", "shown_prompt_end": ("<think>",), "seed": seed}
    return SamplingParams(**DRAWN | wanted | {"thought_budget": budget} | more)


def ids(engine: InferenceEngine, params: SamplingParams, prompt: str = PROMPT) -> list[int]:
    return tokens(run_alone(engine, prompt, params))


END = byte_tokenizer()("\n</think>\n\n")["input_ids"]


@pytest.mark.parametrize("budget", [0, 1, 17, 60])
def test_a_thought_ends_at_its_budget_and_the_answer_follows(
    engine: InferenceEngine, budget: int
) -> None:
    free, thought = ids(engine, limited(None)), ids(engine, limited(budget))

    cut = next(i for i in range(len(thought)) if thought[i : i + len(END)] == END)
    assert thought[:cut] == free[:cut]
    assert budget <= cut < budget + 9  # a character that is not whole is waited for
    assert len(thought) == DRAWN["max_new_tokens"]


@pytest.mark.parametrize("speculation", [False, True])
def test_it_is_the_same_in_a_batch(engine: InferenceEngine, speculation: bool) -> None:
    wanted = [limited(budget, seed) for seed, budget in enumerate((3, 20, None, 50, 0))]
    scheduler = OnlineScheduler(engine, speculation=speculation)

    together = run_together(scheduler, [PROMPT] * len(wanted), wanted)

    assert [tokens(outputs) for outputs in together] == [ids(engine, one) for one in wanted]


def test_whoever_resumes_goes_on_as_it_would_have_gone_on(engine: InferenceEngine) -> None:
    params = limited(20, 1)
    whole = ids(engine, params)
    for known in range(len(whole)):
        assert whole[:known] + tokens(run_alone(engine, PROMPT, params, whole[:known])) == whole


def test_a_grammar_holds_behind_a_thought_that_was_ended(engine: InferenceEngine) -> None:
    wanted = {"regex": "[a-c]{3,9}", "thought_tags": ("<think>", "</think>"), "ignore_eos": False}

    said = text(run_alone(engine, PROMPT, limited(12, 3, **wanted)))

    thought, _, answer = said.partition("\n</think>\n\n")
    assert thought.startswith("<think>")
    assert re.fullmatch("[a-c]{3,9}", answer.strip())


def test_an_answer_without_a_thought_has_no_end_of_one(engine: InferenceEngine) -> None:
    assert ids(engine, limited(3), "Why?") == ids(engine, limited(None), "Why?")


def test_nothing_that_is_banned_keeps_a_thought_from_its_end(engine: InferenceEngine) -> None:
    banned = {"logit_bias": tuple((i, -100.0) for i in set(END)), "no_repeat_ngram_size": 1}

    thought = ids(engine, limited(5, max_new_tokens=13 + len(END), **banned))

    assert any(thought[i : i + len(END)] == END for i in range(len(thought)))


def test_a_thought_that_ends_by_itself_is_not_ended_again() -> None:
    # given: a budget that is used up with the thought's own end
    budget = ThoughtBudget(12, parser_of(None, "think"), Spelt(), [[0]], "<think>")
    # when
    for letter in "Hm.</think>":
        assert budget.forced is None
        budget.add(ord(letter))
    # then
    for letter in "\nBecause.":
        budget.add(ord(letter))
        assert budget.forced is None


def test_an_end_that_may_have_begun_is_waited_for() -> None:
    budget = ThoughtBudget(5, parser_of(None, "think"), Spelt(), [[0]], "<think>")
    for letter in "Hm.</think>\nBecause.":
        assert budget.forced is None
        budget.add(ord(letter))


def test_an_engine_that_wrote_something_else_is_followed() -> None:
    # given: logged tokens of a worker that knew no budget
    budget = ThoughtBudget(2, parser_of(None, "think"), Spelt(), [[0, 0]], "<think>")
    for letter in "Hm, well.</think>":
        budget.add(ord(letter))

    assert budget.forced is None


class Spelt:
    """The id of a token is its character."""

    is_whole = True

    def push(self, token_id: int) -> str:
        return chr(token_id)


@pytest.mark.parametrize("name", ["think", "kimi_k2", "mistral", "command_r", "granite", "harmony"])
def test_each_format_reads_its_end(name: str) -> None:
    opening = {
        "mistral": "[THINK]",
        "command_r": "<|START_THINKING|>",
        "granite": "Here is my thought process:",
        "harmony": "<|channel|>analysis<|message|>",
    }.get(name, "<think>")
    for end in thought_ends(name):
        parser = parser_of(None, name)
        parser.feed(f"{opening}Hm, wel")
        assert parser.thinking
        parser.feed(end)
        assert not parser.thinking
    assert shown_special("", name)


def test_what_is_not_known_is_refused(engine: InferenceEngine) -> None:
    with pytest.raises(InvalidParameter, match="nothing is known of thoughts in the format 'x'"):
        engine.new_session(PROMPT, params=limited(3, thought_format="x"))
    with pytest.raises(InvalidParameter, match="cannot go with a grammar"):
        limited(3, regex="a", ignore_eos=False)
