"""Calls that keep their schema among free text: a grammar that holds from its trigger on."""

import pytest
import torch

from rose.errors import InvalidParameter
from rose.sampling import SamplingParams
from roseinfer.logits_processors.batch import process_logits
from tests.fuzz.sampled_calls import Sampler, calls_of, fits

SAMPLER = Sampler()


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_sampled_call_fits_its_schema_also_where_another_worker_goes_on(
    seed: int, dies: bool
) -> None:
    calls = list(calls_of(SAMPLER.plan, SAMPLER.answer(seed, dies=dies).text))

    assert len(calls) == 2
    assert all(fits(*call) for call in calls), calls


@pytest.mark.parametrize("text", ["Hi < b", "<tool_cal", "<tool_calls>", "a<b<tool"])
def test_other_text_is_free(text: str) -> None:
    # given
    session = SAMPLER._session(0, SAMPLER._tokenizer.encode(text, add_special_tokens=False))
    processor = session.sampling_request().logits_processor
    assert processor is not None
    # when: anything may come, though a trigger may be about to
    logits = torch.zeros(1, len(SAMPLER._tokenizer))
    (letter,) = SAMPLER._tokenizer.encode("z", add_special_tokens=False)
    logits[0, letter] = 1
    process_logits(logits, [(processor, session.num_generated)])
    # then
    assert logits[0, letter] == 1
    assert session.error is None


def test_text_that_does_not_fit_turns_the_grammar_off_and_fails_nothing() -> None:
    """As that of a worker whose grammar could not be followed."""
    said = "<tool_call>no JSON</tool_call> <tool_call>"
    session = SAMPLER._session(0, SAMPLER._tokenizer.encode(said, add_special_tokens=False))

    assert session.error is None
    assert SAMPLER._grammar_of(session) is None


def test_triggers_are_those_of_a_grammar() -> None:
    with pytest.raises(InvalidParameter, match="grammar_triggers needs grammar"):
        SamplingParams(grammar_triggers=("a",))
