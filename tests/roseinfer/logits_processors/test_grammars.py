"""What is generated under a grammar fits it, whatever the model would rather say."""

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from rose.errors import InvalidParameter
from rose.sampling import Grammar
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from roseinfer.demo_model import MODEL_PATH
from roseinfer.logits_processors import matcher
from roseinfer.logits_processors.grammars import GrammarCompiler
from roseinfer.logits_processors.matcher import Matcher
from roseinfer.logits_processors.schemas import list_multiples
from tests.roseinfer.models import (
    build,
    byte_tokenizer,
    drain,
    prompts,
    run_alone,
    run_together,
    text,
    tiny_llama,
    tokens,
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["fox", "owl", None]}, "maxItems": 3},
        "home": {"$ref": "#/$defs/place"},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": "[ ]"},
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"warm": {"type": "boolean"}},
            "required": ["warm"],
            "additionalProperties": False,
        }
    },
}
REGEX = r"(yes|no), [a-f]{2,5}( [0-9]{1,3})*\."
LARK = r"""
start: sum
sum: product (" + " product)?
product: NUMBER ("*" NUMBER)?
NUMBER: /[1-9][0-9]{0,2}/
"""


def is_person(value: Any) -> bool:
    """PERSON, checked by hand."""
    return (
        set(value) == {"name", "age", "tags", "home"}
        and isinstance(value["name"], str)
        and 1 <= len(value["name"]) <= 8
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and len(value["tags"]) <= 3
        and all(tag in ("fox", "owl", None) for tag in value["tags"])
        and set(value["home"]) == {"warm"}
        and type(value["home"]["warm"]) is bool
    )


def constrained(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 150, **changes})


@pytest.fixture(scope="module")
def built_in() -> InferenceEngine:
    return InferenceEngine(device="cpu", kv_cache_tokens=4096)


@pytest.fixture(params=["random", "built-in"])
def any_engine(request: pytest.FixtureRequest) -> InferenceEngine:
    """A model that talks nonsense, and one that only tells stories."""
    name = {"random": "engine", "built-in": "built_in"}[request.param]
    engine: InferenceEngine = request.getfixturevalue(name)
    return engine


def many(engine: InferenceEngine, **changes: Any) -> list[tuple[str, str | None]]:
    """Text and reason of a greedy request and of seeded ones, in one batch."""
    asked = [[3 + seed, 7] for seed in range(12)]
    params = [constrained(temperature=0.6 * (i % 4), seed=i, **changes) for i in range(12)]
    outputs = run_together(OnlineScheduler(engine), asked, params)
    return [(text(own), own[-1].finish_reason) for own in outputs]


def test_json_parses_and_validates(any_engine: InferenceEngine) -> None:
    found = many(any_engine, json_schema=json.dumps(PERSON), max_new_tokens=200)
    assert {reason for _, reason in found} == {"stop"}
    assert all(is_person(json.loads(text)) for text, _ in found)
    assert len({text for text, _ in found}) > 6


def test_json_is_written_in_one_form(engine: InferenceEngine) -> None:
    nulls = {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 2}
    pair = {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": nulls},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    # when: the model would rather write white space than anything else
    blanks = tuple((token_id, 100.0) for blank in " \n" for token_id in engine.encode(blank))
    asked = constrained(json_schema=json.dumps(pair), logit_bias=blanks)
    said = text(run_alone(engine, [5], asked))
    # then
    assert said == '{"a": null, "b": [null, null]}'


def test_a_regular_expression_matches_the_whole_text(any_engine: InferenceEngine) -> None:
    for said, reason in many(any_engine, regex=REGEX):
        assert reason in ("stop", "length")
        if reason == "stop":
            assert re.fullmatch(REGEX, said)
        else:
            assert re.fullmatch(r"(yes|no), [a-f]{2,5}( [0-9]{0,3})*", said)


def test_a_lark_grammar_is_followed(any_engine: InferenceEngine) -> None:
    product = r"[1-9]\d{0,2}(\*[1-9]\d{0,2})?"
    for said, reason in many(any_engine, grammar=LARK):
        assert reason in ("eos", "stop")
        assert re.fullmatch(rf"{product}( \+ {product})?", said)


def test_where_the_text_may_end_only_eos_or_more_of_it_comes(engine: InferenceEngine) -> None:
    """EOS (257) is what this request would choose at any time, and may not before it fits."""
    params = constrained(regex="[ab]{3}c*", logit_bias=((257, 100.0),))
    outputs = run_alone(engine, prompts(9)[0], params)
    assert (len(text(outputs)), outputs[-1].token_ids, outputs[-1].finish_reason) == (
        3,
        (257,),
        "eos",
    )


def test_where_nothing_may_follow_it_ends_at_once(engine: InferenceEngine) -> None:
    outputs = run_alone(engine, prompts(9)[0], constrained(regex="the end"))
    assert text(outputs) == "the end"
    assert outputs[-1].finish_reason == "stop"
    assert 257 not in tokens(outputs)


def test_too_few_tokens_truncate(engine: InferenceEngine) -> None:
    params = constrained(json_schema=json.dumps(PERSON), max_new_tokens=7)
    outputs = run_alone(engine, prompts(9)[0], params)
    assert (len(tokens(outputs)), outputs[-1].finish_reason) == (7, "length")
    assert text(outputs).startswith("{")


def test_min_new_tokens_keeps_it_going_as_long_as_the_grammar_can(engine: InferenceEngine) -> None:
    likely = ((257, 100.0),)
    longer = constrained(regex="[ab]{3,9}", min_new_tokens=6, logit_bias=likely)
    assert len(text(run_alone(engine, [5], longer))) == 6
    ended = constrained(regex="[ab]{3}", min_new_tokens=6, logit_bias=likely)
    assert len(text(run_alone(engine, [5], ended))) == 3
    only_end = constrained(grammar='start: "ab" <eos>', min_new_tokens=6)
    outputs = run_alone(engine, [5], only_end)
    assert (text(outputs), outputs[-1].finish_reason) == ("ab", "eos")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"regex": "a("}, "regex: .*unclosed group"),
        ({"grammar": 'start: "a" x'}, 'grammar: .*unknown name: "x"'),
        ({"json_schema": "{"}, "json_schema: "),
        ({"json_schema": '{"type": "no such type"}'}, "json_schema: "),
        ({"json_schema": '{"type": "integer", "minimum": 5, "maximum": 4}'}, "json_schema: "),
        ({"json_schema": '{"type":"array","items":' * 500 + "{}" + "}" * 500}, "recursion limit"),
        ({"grammar": "start: A\nA: /(.*a.{200})/ & /(.*b.{300})/ & ~/(.*c.{100})/"}, "fuel"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_refused(
    engine: InferenceEngine, wrong: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidParameter, match=says) as caught:
        engine.new_session([1], params=SamplingParams(**wrong))  # type: ignore[arg-type]
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "impossible", [{"regex": r"a&&b[^\s\S]"}, {"json_schema": '{"$ref": "#"}'}]
)
def test_a_grammar_that_no_text_fits_says_so(
    engine: InferenceEngine, impossible: dict[str, str]
) -> None:
    with pytest.raises(InvalidParameter, match=r"no text fits it$"):
        engine.generate([1], constrained(**impossible))


def test_what_turns_out_to_be_too_complex_ends_only_its_own_request(
    engine: InferenceEngine,
) -> None:
    # given: compiles, and has more possibilities after the first brace than the parser allows
    wide = {"type": "object", "properties": {f"k{i}": {"pattern": "^a*$"} for i in range(1200)}}
    scheduler = OnlineScheduler(engine)
    bad = scheduler.add_request([5, 6], params=constrained(json_schema=json.dumps(wide)))
    good = scheduler.add_request([5, 6], params=constrained(regex="[ab]{9}"))
    # when
    outputs = drain(scheduler)
    # then
    last = outputs[bad][-1]
    assert last.finish_reason == "error"
    assert isinstance(last.error, InvalidParameter)
    assert str(last.error).startswith("json_schema: ")
    assert re.fullmatch("[ab]{9}", text(outputs[good]))
    with pytest.raises(InvalidParameter, match="json_schema: "):
        engine.generate([5, 6], constrained(json_schema=json.dumps(wide)))


def test_logged_ids_that_do_not_fit_are_refused(engine: InferenceEngine) -> None:
    ids = engine.encode("zz")
    with pytest.raises(InvalidParameter, match="regex: "):
        engine.new_session([1], params=SamplingParams(regex="[ab]+"), generated_ids=ids)


def test_without_a_tokenizer_or_an_end_there_is_no_grammar() -> None:
    engine = InferenceEngine.from_model(build("llama"), kv_cache_tokens=64)
    with pytest.raises(InvalidParameter, match="regex needs a tokenizer"):
        engine.new_session([1], params=SamplingParams(regex="a"))
    endless = GrammarCompiler(byte_tokenizer(), 300, frozenset())
    with pytest.raises(InvalidParameter, match="end-of-text"):
        endless.compile(Grammar("regex", "a"))


def test_a_model_with_more_rows_than_the_tokenizer_has_tokens() -> None:
    model = tiny_llama(vocab_size=333)
    engine = InferenceEngine.from_model(model, byte_tokenizer(), kv_cache_tokens=512)
    params = constrained(regex="[ab]{30}", temperature=5.0, seed=1)
    assert re.fullmatch("[ab]{30}", text(run_alone(engine, [5], params)))


def byte_level_with_a_space_before_each_text() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    return tokenizer


def sentencepiece_without_bytes() -> PreTrainedTokenizerFast:
    """As SentencePieceBPETokenizer of the tokenizers library makes it."""
    pieces = ["</s>", "▁", *(chr(code) for code in range(33, 127)), '▁"', '":']
    vocab = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[("▁", '"'), ('"', ":")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@pytest.mark.parametrize(
    "make", [byte_level_with_a_space_before_each_text, sentencepiece_without_bytes]
)
def test_unusual_tokenizers_write_what_a_grammar_forces(
    make: Callable[[], PreTrainedTokenizerFast],
) -> None:
    # given: `{"name": "` is forced, and begins with no space
    name = {"type": "string", "pattern": "^[a-c]{3}$"}
    schema = {"type": "object", "properties": {"name": name}, "required": ["name"]}
    closed = {**schema, "additionalProperties": False}
    engine = InferenceEngine.from_model(tiny_llama(), make(), kv_cache_tokens=512)
    # when
    asked = constrained(json_schema=json.dumps(closed), temperature=2.0, seed=3)
    said = text(run_alone(engine, "a", asked))
    # then
    assert re.fullmatch(r'\{"name": "[a-c]{3}"\}', said)


def test_masks_hold_what_the_grammar_allows_and_nothing_else() -> None:
    tokenizer = byte_tokenizer()
    compiler = GrammarCompiler(tokenizer, 300, frozenset({256, 257}))
    first, second = (
        Matcher("regex", compiler.compile(Grammar("regex", source)), compiler.mask_size)
        for source in ("th?e*", "x")
    )
    first.advance(tokenizer.encode("t")[0])
    masks = Matcher.allowed([(first, []), (second, [5])], 280, torch.device("cpu"))
    names = [[tokenizer.decode([i]) for i in row.nonzero().flatten()] for row in masks]
    assert masks.shape == (2, 280)
    assert sorted(names[0]) == ["<bos>", "<eos>", "e", "h"]
    assert names[1] == ["x"]


def _own_compiler() -> GrammarCompiler:
    """Of the built-in model, whose tokens are words: a step looks far."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(MODEL_PATH / "tokenizer.json"))
    return GrammarCompiler(tokenizer, len(tokenizer), frozenset({0}))


def _ambiguous(pattern: str) -> Iterator[tuple[str, Grammar]]:
    """In each place that a pattern may have, with its path."""
    yield "regex", Grammar("regex", pattern)
    for inside in ({"pattern": pattern}, {"patternProperties": {pattern: True}}):
        schema = json.dumps({"properties": {"a": {"items": inside}}})
        (key,) = inside
        yield f"json_schema.properties.a.items.{key}", Grammar("json_schema", schema)
        yield (
            f"grammar.b.properties.a.items.{key}",
            Grammar("grammar", f"start: b\nb: %json {schema}"),
        )
    yield "grammar.WORDS", Grammar("grammar", f'start: "a/" WORDS // /\nWORDS: "/" /{pattern}/')
    yield "grammar.MANY", Grammar("grammar", r"start: MANY" "\n" r"MANY: (/\p{L}+ ?/){2,1000}")


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (
            Grammar("json_schema", '{"properties": {"a": {"not": {}}}}'),
            "json_schema.properties.a.not: ",
        ),
        (
            Grammar("grammar", 'start: args\nargs: %json {"properties": {"a": {"not": {}}}}'),
            "grammar.args.properties.a.not: ",
        ),
        (Grammar("regex", r"((\w|\d[a-z]*){350,1000}a?){0,20}"), "regex: the pattern has 60020 "),
        (
            Grammar("json_schema", json.dumps({"items": {"pattern": "[)(]{3}(ab|c){4000}"}})),
            "json_schema.items.pattern: the pattern has 12003 characters",
        ),
        *(
            (grammar, f"{path}: a text may be counted in so many ways")
            for path, grammar in _ambiguous(r"(\p{L}+ ?){2,1000}")
        ),
        (
            Grammar("json_schema", '{"type": "integer", "multipleOf": 86400}'),
            "json_schema.multipleOf: a multiple of 86400 needs 86400 states",
        ),
        (
            Grammar("json_schema", '{"items": {"multipleOf": 7000003}}'),
            "json_schema.items.multipleOf: a multiple of 7000003",
        ),
        (
            Grammar("json_schema", '{"type": "number", "multipleOf": 1e-300}'),
            "json_schema.multipleOf: ",
        ),
        (
            Grammar("json_schema", '{"multipleOf": 65536, "minimum": 65536, "maximum": 1048576}'),
            "json_schema.multipleOf: ",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_by_its_path(grammar: Grammar, said: str) -> None:
    compiler = _own_compiler()
    with pytest.raises(InvalidParameter) as caught:
        compiler.try_out(grammar)
    assert str(caught.value).startswith(said)
    assert "start:" not in str(caught.value)


_DAYS = {"type": "integer", "multipleOf": 86400, "minimum": 0, "maximum": 864000}
_ODD = {"type": "number", "multipleOf": 7919, "exclusiveMinimum": -7919, "maximum": 15838.5}


@pytest.mark.parametrize(
    ("grammar", "fits", "differs"),
    [
        (Grammar("json_schema", json.dumps(_DAYS)), ["0", "86400", "864000"], ["1", "950400"]),
        (Grammar("json_schema", json.dumps(_ODD)), ["0", "7919", "15838"], ["-7919", "23757"]),
        (
            Grammar("grammar", f'start: a b\na: %json {json.dumps(_DAYS)}\nb: "x"'),
            ["172800x"],
            ["172800", "5x"],
        ),
        (
            Grammar("json_schema", json.dumps({"properties": {"enum": _DAYS}, "type": "object"})),
            ['{"enum": 86400}'],
            ['{"enum": 86401}'],
        ),
    ],
)
def test_multiples_between_bounds_are_followed(
    grammar: Grammar, fits: list[str], differs: list[str]
) -> None:
    # given
    tokenizer = byte_tokenizer()
    compiler = GrammarCompiler(tokenizer, 300, frozenset({257}))
    # when
    compiler.try_out(grammar)
    # then
    for written in (*fits, *differs):
        state = compiler.compile(grammar)
        ids = [*tokenizer.encode(written), 257]
        assert (state.validate_tokens(ids) == len(ids)) == (written in fits), written


@pytest.mark.parametrize(
    "source",
    [
        r"[a-z ]*a[a-z ]{30}",
        r".*a.{100}b.*",
        r".*(a.{20}b|c.{30}d).*",
        r"(\w+ ){500}",
        r"\w{300,4000}",
        r"(a.{0,300}b|b.{0,300}a){0,5}",
        r"[^x]*(.){2,1000}\d{1,5}",
        r"(\w+, ){2,1000}",
        r"(\p{L}+ ?){2,400}",
    ],
)
def test_what_is_accepted_is_followed_as_far_as_its_text_goes(source: str) -> None:
    # given
    compiler = _own_compiler()
    grammar, draw = Grammar("regex", source), random.Random(1)
    compiler.try_out(grammar)
    state = compiler.compile(grammar)
    text: list[int] = []
    # when
    while len(text) < 600 and (mask := state.mask() & ~1):
        text.append(draw.choice([i for i, bit in enumerate(bin(mask)[:1:-1]) if bit == "1"]))
        state.consume_token(text[-1])
        # then
        assert not state.is_error(), (len(text), state.get_error())
    # and: the whole of it fits
    assert compiler.compile(grammar).validate_tokens(text) == len(text)


@pytest.mark.parametrize("bound", ["1e-999999", "1e999999", '"0"', "true", "null"])
def test_bounds_that_cannot_be_counted_end_in_no_time(bound: str) -> None:
    source = f'{{"type": "integer", "multipleOf": 7, "minimum": {bound}, "maximum": 70}}'
    grammar = Grammar("json_schema", source)
    assert list_multiples(grammar) == grammar


class _Costly:
    """A state whose masks take so long, by a clock of the test's."""

    def __init__(self, clock: list[float], state: Any, takes_s: float) -> None:
        self._clock, self._state, self._takes_s = clock, state, takes_s

    def compute_mask(self, *place: int) -> None:
        self._clock[0] += self._takes_s
        self._state.compute_mask(*place)

    def is_error(self) -> bool:
        return bool(self._state.is_error())


@pytest.mark.parametrize(
    ("costs_s", "stopped"),
    [
        ([0.0029], []),  # alone, less than a mask may take
        ([0.0029] * 10, []),
        ([0.0029] * 11, [*range(11)]),  # more than a step may take
        ([0.0029] * 31 + [0.0005], [*range(31)]),  # one takes less than its part
        ([0.0009] * 32, []),
        ([0.04] + [0.0001] * 31, [0]),
    ],
)
def test_costly_masks_of_a_step_end_the_requests_that_have_them(
    monkeypatch: pytest.MonkeyPatch, costs_s: list[float], stopped: list[int]
) -> None:
    # given
    clock = [0.0]
    monkeypatch.setattr(matcher.time, "thread_time", lambda: clock[0])
    compiler = GrammarCompiler(byte_tokenizer(), 300, frozenset({257}))
    state = compiler.compile(Grammar("regex", "[a-z]*"))
    running = [Matcher("regex", _Costly(clock, state, cost_s), 300) for cost_s in costs_s]  # type: ignore[arg-type]
    # when
    for _ in range(1000):
        pairs = [(each, []) for each in running if each.error is None]
        if pairs:
            Matcher.allowed(pairs, 300, torch.device("cpu"))
    # then
    assert [n for n, each in enumerate(running) if each.error is not None] == stopped
