"""Calls that keep their schema among free text: a grammar that holds from its trigger on."""

import pytest
import torch

from rose.errors import InvalidParameter
from rose.formats.registry import TOOL_FORMATS
from rose.sampling import SamplingParams
from rose_gateway.tools.tools import Choice, plan_tools
from roseinfer.logits_processors.batch import process_logits
from roseinfer.sessions.factory import SessionFactory
from roseinfer.sessions.session import InferenceSession
from tests.fuzz.sampled_calls import FUNCTIONS, Sampler, calls_of, fits, sampler
from tests.roseinfer.models import byte_tokenizer

HERMES = sampler("hermes", special=False)
THOUGHTS = ("<think>", "</think>")


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_every_sampled_call_fits_its_schema_also_where_another_worker_goes_on(
    tool_format: str, *, special: bool
) -> None:
    made, calls = sampler(tool_format, special=special), 0
    for seed in range(6):
        session = made.answer(seed, dies=seed % 2 == 1)
        found = list(calls_of(made.plan, session.text))
        assert session.error is None
        assert all(fits(*call) for call in found), session.text
        calls += len(found)

    assert calls > 0


def session_of(made: Sampler, text: str, **more: object) -> InferenceSession:
    return made.session(0, made.ids(text), **more)


def may_come(session: InferenceSession, token_id: int, size: int) -> bool:
    processor = session.sampling_request().logits_processor
    assert processor is not None
    logits = torch.zeros(1, size)
    process_logits(logits, [(processor, session.num_generated)])
    return bool(logits[0, token_id] == 0)


@pytest.mark.parametrize("token", ["z", "<eos>"])
@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        *(("hermes", text) for text in ("Hi < b", "<tool_cal", "<tool_calls>", "a<b<tool")),
        *(("llama3_json", text) for text in ("", " ", "Hi", '{"nam', '{"place": 1', "[")),
        *(("pythonic", text) for text in ("", "[", "[1] See", "[weath", "Hi [now(")),
        *(("command_r", text) for text in ("Action: ", "Action: buy", "Action: ```js")),
        ("harmony", "<|channel|>final<|message|>to=functions.weather"),
    ],
)
def test_other_text_is_free(tool_format: str, text: str, token: str) -> None:
    """Though a trigger may be about to come."""
    made = sampler(tool_format, special=False)
    session = session_of(made, text)
    (token_id,) = made.ids(token)

    assert session.error is None
    assert may_come(session, token_id, made.size)


@pytest.mark.parametrize("text", ["Hi", "Hi <b> there", '{"place": 1}', "[1] See"])
def test_free_text_costs_no_mask(text: str) -> None:
    for tool_format in ("hermes", "llama3_json", "pythonic"):
        made = sampler(tool_format, special=False)
        assert made.grammar_of(session_of(made, text)) is None


def test_text_that_does_not_fit_turns_the_grammar_off_and_fails_nothing() -> None:
    """As that of a worker whose grammar could not be followed."""
    session = session_of(HERMES, "<tool_call>no JSON</tool_call> <tool_call>")

    assert session.error is None
    assert HERMES.grammar_of(session) is None


@pytest.mark.parametrize(
    ("text", "is_inside"),
    [
        ("<think>I write <tool_call>", False),
        ("\n<think>no</think> <tool_call>", True),
        ("Well. <think> <tool_call>", True),
    ],
)
def test_a_trigger_within_a_thought_is_none(text: str, *, is_inside: bool) -> None:
    session = session_of(HERMES, text, thought_tags=THOUGHTS)

    assert (HERMES.grammar_of(session) is not None) == is_inside


def test_a_thought_whose_opening_the_prompt_has_is_one() -> None:
    made, prompt = HERMES, HERMES.ids("<think>\n")
    fields = {"thought_tags": THOUGHTS, "shown_prompt_end": ("<think>",)}

    thinking = made.session(0, made.ids("<tool_call>"), prompt=prompt, **fields)
    calling = made.session(0, made.ids("no</think><tool_call>"), prompt=prompt, **fields)

    assert made.grammar_of(thinking) is None
    assert made.grammar_of(calling) is not None


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_without_parallel_calls_the_first_one_ends_the_answer(tool_format: str) -> None:
    made = Sampler(tool_format, parallel=False)
    for seed in range(3):
        session = made.answer(seed, dies=False)
        assert len(list(calls_of(made.plan, session.text))) <= 1
        if session.finish_reason != "eos" and calls_of(made.plan, session.text):
            assert session.finish_reason in ("stop", None)


def test_a_token_goes_beyond_a_trigger_only_as_the_grammar_does() -> None:
    # given tokens that complete the tag, and more
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(['>{"', ">\n", ">no", 'l><tool_call>{"x'])
    plan = plan_tools(FUNCTIONS, Choice("auto"), tool_format="hermes")
    factory = SessionFactory(
        tokenizer, vocab_size=len(tokenizer), eos_token_ids={257}, context_length=4096
    )

    def allowed(text: str, token: str) -> bool:
        ids = tokenizer.encode(text, add_special_tokens=False)
        params = SamplingParams(max_new_tokens=100, **plan.lazy)
        session = factory.new_session([1], params=params, generated_ids=ids)
        return may_come(session, tokenizer.convert_tokens_to_ids(token), len(tokenizer))

    # then
    assert allowed("<tool_call", '>{"')
    assert allowed("<tool_call", ">\n")
    assert not allowed("<tool_call", ">no")
    assert allowed("tool_call", ">no")
    assert not allowed("Hi", 'l><tool_call>{"x')


def test_triggers_are_those_of_a_grammar() -> None:
    with pytest.raises(InvalidParameter, match="grammar_triggers needs grammar"):
        SamplingParams(grammar_triggers=("a",))
    with pytest.raises(InvalidParameter, match="grammar_once needs grammar_triggers"):
        SamplingParams(grammar_once=True)
    with pytest.raises(InvalidParameter, match="thought_tags needs"):
        SamplingParams(thought_tags=("<think>",))
