"""Text that must fit a JSON schema, a regular expression or a Lark grammar, by llguidance.

llguidance bounds what a step costs: a state that exceeds it has an error from then on. It does not
bound what compiling costs, nor does it see that a grammar cannot be followed to its end. So what
others have written is tried first, by `try_out`, in a process that can be ended.
"""

import json
import logging
import math
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from functools import cached_property
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import decoders, pre_tokenizers

from rose.errors import InvalidParameter
from rose.sampling import JSON_LAYOUT, Grammar
from roseinfer.logits_processors.schemas import (
    check_multiples,
    check_patterns,
    list_multiples,
    path_of_unknown,
    patterns_that_count,
)
from roseinfer.logits_processors.tags import with_tags
from roseinfer.logits_processors.token_texts import TokenTexts

log = logging.getLogger("rose.grammars")

# Errors quote the grammar, whose length is up to the user.
_MAX_REPORT_LENGTH = 300
#: llguidance's word for a grammar that lets no token begin a text.
_UNMATCHABLE = "NoExtensionBias"
# Each lexer state takes 1 to 2 kB as long as the request runs: 10 MB, and times the slots of a
# worker still less than its model. Ordinary grammars have some hundreds. What counts characters has
# some for each place that a text may reach.
_MAX_LEXER_STATES = 5_000
#: Of a text itself, for each of its bytes: one that it has passed, and one beside it.
_STATES_OF_A_BYTE = 2
#: llguidance's word for more of them.
_TOO_MANY_STATES = "too many states"
_QUOTED_LINE = re.compile(r"\n +\d+ \| ")
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_NUMBERS = _BOUNDS | {"type", "multipleOf"}
#: Between a thought and what follows it.
_MAX_SPACE = 16
#: How long a grammar is tried: each `multipleOf` with bounds and each pattern that counts alone,
#: then the whole.
_TRIAL_S = 0.002
_TRIAL_TOKENS = 60
_MULTIPLE_TRIAL_S = 0.05
_MULTIPLE_TRIALS = 3
_COMPILE_TRIALS = 3
#: What one step of a lexer may build, by llguidance's count: about 3 ms of it where a pattern
#: is tried, and four times that for a text which goes on where no trial went.
_TRIAL_FUEL = 200_000
_STEP_FUEL = 4 * _TRIAL_FUEL
#: What reading a text again may build.
_FUEL_OF_A_TEXT = 5_000_000
#: A pattern that counts is followed so far: each place where a count may stand costs in each step,
#: and a text reaches one more with each character.
_COUNT_TRIALS = 2
_COUNT_TOKENS = 400
_TOKENS_OF_A_MASK = 4
#: What is compiled beside the steps of a worker takes no longer, by the trial's measure.
MAX_COMPILE_S = 0.1


class GrammarState:
    """Where a text stands in its grammar.

    llguidance keeps each state of its lexer that it has looked at, those of all tokens that might
    have come among them, and has an error when there are too many. A text has passed one for each
    byte at most. So one that is full gives way to a new one, which reads the text again.
    """

    def __init__(self, vocabulary: LLTokenizer, grammar: Grammar, source: str) -> None:
        """`source`: the grammar as llguidance takes it. Raises InvalidParameter."""
        self._vocabulary, self._grammar, self._source = vocabulary, grammar, source
        self._text: list[int] = []
        self._matcher = _compile(vocabulary, grammar, source, _MAX_LEXER_STATES, _STEP_FUEL)

    def fresh(self) -> "GrammarState":
        """The same at the beginning; of one that has not gone on."""
        made = copy(self)
        made._text = []
        made._matcher = self._matcher.deep_copy()
        return made

    def consume_token(self, token_id: int) -> None:
        """One that does not fit is an error."""
        self._text.append(token_id)
        if not self._matcher.is_error() and not self._matcher.consume_token(token_id):
            self._renew()  # a full one says that it does not fit

    def validate_tokens(self, token_ids: list[int]) -> int:
        """How many of them may come next."""
        valid: int = self._matcher.validate_tokens(token_ids)
        if valid < len(token_ids) and not self._matcher.is_stopped():
            self._renew()
            valid = self._matcher.validate_tokens(token_ids)
        return valid

    def compute_mask(self, pointer: int, size: int) -> None:
        """Which tokens may come next: a bit for each, in `size` bytes."""
        self._matcher.unsafe_compute_mask_ptr(pointer, size)
        if self._renew_if_full():
            self._matcher.unsafe_compute_mask_ptr(pointer, size)

    def mask(self) -> int:
        """The same as the bits of a number."""
        mask = self._matcher.compute_bitmask()
        if self._renew_if_full():
            mask = self._matcher.compute_bitmask()
        return int.from_bytes(mask, "little")

    def is_error(self) -> bool:
        return bool(self._matcher.is_error())

    def get_error(self) -> str:
        return str(self._matcher.get_error())

    def is_stopped(self) -> bool:
        return bool(self._matcher.is_stopped())

    def _renew_if_full(self) -> bool:
        is_full = self._matcher.is_error() and _TOO_MANY_STATES in self._matcher.get_error()
        if is_full:
            self._renew()
        return is_full

    def _renew(self) -> None:
        length = len(self._vocabulary.decode_bytes(self._text))
        most = _MAX_LEXER_STATES + _STATES_OF_A_BYTE * length
        self._matcher = _compile(
            self._vocabulary, self._grammar, self._source, most, _STEP_FUEL, _FUEL_OF_A_TEXT
        )
        self._matcher.consume_tokens(self._text)


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Threads may share it."""

    def __init__(
        self, tokenizer: Any | None, vocab_size: int, eos_token_ids: AbstractSet[int]
    ) -> None:
        """`tokenizer` is transformers' fast kind, or None: then nothing can be compiled."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> GrammarState:
        """Raises InvalidParameter for a grammar that is wrong, or costs too much, and where there
        is no tokenizer, or one that cannot be used."""
        if self._tokenizer is None:
            raise InvalidParameter(f"{grammar.kind} needs a tokenizer, and this engine has none")
        with self._lock:
            vocabulary = self._vocabulary
        grammar = list_multiples(grammar)
        check_multiples(grammar)
        check_patterns(grammar)
        try:
            return self._state(vocabulary, grammar)
        except InvalidParameter:
            if grammar.thought_tags:  # an error is about the grammar as it was given
                self._state(vocabulary, grammar._replace(thought_tags=()))
            raise

    def _state(self, vocabulary: LLTokenizer, grammar: Grammar) -> GrammarState:
        return GrammarState(vocabulary, grammar, _to_lark(grammar, self.special))

    @cached_property
    def special(self) -> Mapping[str, int]:
        """The ids of special tokens by their names. After `compile`."""
        added: Any = (
            self._tokenizer and self._tokenizer.backend_tokenizer.get_added_tokens_decoder()
        )
        return {token.content: token_id for token_id, token in added.items() if token.special}

    def tokens_of(self, text: bytes) -> list[int]:
        """Tokens whose text this is. After `compile`."""
        tokens: list[int] = self._vocabulary.tokenize_bytes(text)
        return tokens

    @cached_property
    def texts(self) -> TokenTexts:
        return TokenTexts(self.token_bytes() or [])

    @property
    def mask_size(self) -> int:
        """How many tokens a mask of llguidance has a bit for."""
        with self._lock:
            return self._vocabulary.vocab_size

    def try_out(self, grammar: Grammar) -> None:
        """Compile a grammar, and follow it some way.

        Raises InvalidParameter: it is wrong, costs too much or ends in an error. It may also take
        any time and memory.
        """
        grammar = list_multiples(grammar)
        if grammar.is_lazy:
            # Whether it is followed must not depend on the machine: llguidance's own bounds decide.
            plain = with_tags(grammar.source, self.special)
            grammar = grammar._replace(source=plain, is_lazy=False)
            state = self.compile(grammar)
            self._count(grammar)
            self._walk(state, grammar.kind, 0, math.inf)
            return
        took_s, attempts = MAX_COMPILE_S + 1, 0
        while took_s > MAX_COMPILE_S and attempts < _COMPILE_TRIALS:  # others may disturb one
            began = time.thread_time()
            state = self.compile(grammar)
            took_s, attempts = min(took_s, time.thread_time() - began), attempts + 1
        if took_s > MAX_COMPILE_S:
            raise InvalidParameter(
                f"{_costliest(grammar)}: it takes {took_s:.2f} s of processor time to compile, and "
                f"may take {MAX_COMPILE_S}: make it smaller",
                param=_costliest(grammar),
            )
        for path, schema, _ in check_multiples(grammar):
            if _BOUNDS & schema.keys():
                alone = {key: schema[key] for key in _NUMBERS & schema.keys()}
                alone.setdefault("type", "number")
                source = json.dumps(alone, default=float)
                for seed in range(_MULTIPLE_TRIALS):
                    part = self._state(self._vocabulary, Grammar("json_schema", source))
                    if not self._walk(part, path, seed, _MULTIPLE_TRIAL_S):
                        raise InvalidParameter(
                            f"{path}: following it within its bounds takes more than "
                            f"{_MULTIPLE_TRIAL_S} s of processor time: leave out the bounds or it",
                            param=path,
                        )
        self._count(grammar)
        self._walk(state, grammar.kind, 0, _TRIAL_S)

    def _count(self, grammar: Grammar) -> None:
        """Raises InvalidParameter: a pattern may be counted in too many ways."""
        for path, counting in patterns_that_count(grammar):
            for seed in range(_COUNT_TRIALS):
                self._run(counting, path, seed)

    def _run(self, grammar: Grammar, path: str, seed: int) -> None:
        """Follow random tokens far, and look at few masks on the way.

        Raises InvalidParameter where a mask costs too much.
        """
        draw = random.Random(seed)  # noqa: S311 - no secret
        source = _to_lark(grammar, self.special)
        state = _compile(self._vocabulary, grammar, source, _MAX_LEXER_STATES * 10, _TRIAL_FUEL)
        is_first = True
        for _ in range(_COUNT_TOKENS // _TOKENS_OF_A_MASK):
            mask = int.from_bytes(state.compute_bitmask(), "little")
            if state.is_error():
                raise InvalidParameter(
                    f"{path}: a text may be counted in so many ways that following it costs too "
                    "much: use * or smaller counts, or let what is counted end in a character that "
                    "cannot be inside of it",
                    param=path,
                )
            if not mask or state.is_stopped():
                return
            drawn = [_drawn(mask, draw) for _ in range(_TOKENS_OF_A_MASK)]
            for token_id in draw.choices(drawn, k=_TOKENS_OF_A_MASK):
                is_last = token_id in self._eos_token_ids or b'"' in self._vocabulary.decode_bytes(
                    [token_id]
                )
                if (is_first or not is_last) and state.validate_tokens([token_id]):
                    state.consume_token(token_id)
                    is_first = False

    def _walk(self, state: GrammarState, path: str, seed: int, limit_s: float) -> bool:
        """Follow random tokens, which must not take longer than `limit_s`.

        Raises InvalidParameter where they end in an error.
        """
        draw = random.Random(seed)  # noqa: S311 - no secret
        end = time.thread_time() + limit_s
        for _ in range(_TRIAL_TOKENS):
            mask = state.mask()
            if state.is_error():
                raise InvalidParameter(
                    report(f"{path}: it cannot be followed to its end", state.get_error()),
                    param=path,
                )
            if time.thread_time() > end:
                return False
            if not mask or state.is_stopped():
                break
            state.consume_token(_drawn(mask, draw))
        return True

    def token_bytes(self) -> list[bytes] | None:
        """The bytes of each token by its id: special ones are their names, ids that the tokenizer
        lacks are empty. None if there is no tokenizer, or one that cannot be used."""
        if self._tokenizer is None:
            return None
        try:
            with self._lock:
                vocabulary = self._vocabulary
        except InvalidParameter as error:
            log.warning("the bytes of single tokens are not known: %s", error)
            return None
        known = set(self._tokenizer.get_vocab().values())
        ids = range(max(known, default=-1) + 1)
        return [vocabulary.decode_bytes([i]) if i in known else b"" for i in ids]

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        """The tokenizer as llguidance knows it; takes up to a second for a large one."""
        tokenizer = self._tokenizer
        size = len(tokenizer or ())
        ends = sorted(token_id for token_id in self._eos_token_ids if token_id < size)
        if not ends:
            raise InvalidParameter("a grammar needs an end-of-text token, which this model lacks")
        try:
            description = _readable(tokenizer).to_str()
            return LLTokenizer(description, n_vocab=max(size, self._vocab_size), eos_token=ends)
        except Exception as error:
            raise InvalidParameter(
                report("grammars do not work with this model's tokenizer", str(error))
            ) from error


def _readable(tokenizer: Any) -> Any:
    """A copy of what is behind `tokenizer`, with the same bytes for each token, that llguidance
    understands."""
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    # A space that is put before each text would stand before each piece that a grammar forces.
    before: Any = backend.pre_tokenizer
    steps: Any = before if isinstance(before, pre_tokenizers.Sequence) else [before]
    for step in steps:
        if isinstance(step, pre_tokenizers.ByteLevel):
            step.add_prefix_space = False
    # It knows this decoder only as steps, one of which reads names as bytes: there must be none.
    decoder, has_byte_names = backend.decoder, backend.token_to_id("<0x0A>") is not None
    if isinstance(decoder, decoders.Metaspace) and not has_byte_names:
        space = decoders.Replace(decoder.replacement, " ")
        backend.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _compile(
    vocabulary: LLTokenizer,
    grammar: Grammar,
    source: str,
    max_states: int,
    step_fuel: int,
    initial_fuel: int | None = None,
) -> LLMatcher:
    """Raises InvalidParameter."""
    limits = LLParserLimits(
        max_lexer_states=max_states,
        step_lexer_fuel=step_fuel,
        initial_lexer_fuel=initial_fuel,
        verbose_errors=False,
    )
    state = LLMatcher(vocabulary, source, log_level=0, limits=limits)
    if state.is_error():
        error = state.get_error()
        path = path_of_unknown(grammar, error)
        what = path or grammar.kind
        raise InvalidParameter(report(what, _without_source(grammar, error)), param=what)
    return state


def _costliest(grammar: Grammar) -> str:
    """The path of what probably makes a grammar costly, or only its kind."""
    multiples = check_multiples(grammar)
    return multiples[0].path if multiples else grammar.kind


def _drawn(mask: int, draw: random.Random) -> int:
    """One of the bits of `mask` that are set."""
    start = draw.randrange(mask.bit_length())
    rest = mask >> start
    lowest = rest & -rest
    return start + lowest.bit_length() - 1


def _without_source(grammar: Grammar, error: str) -> str:
    """Errors of Lark quote the lines around: only who sent a grammar has written them, and what a
    tool's schema is in has not been."""
    is_own = grammar.kind == "grammar" and "%json" not in error
    return error if is_own else _QUOTED_LINE.split(error, 1)[0]


def _to_lark(grammar: Grammar, special: Mapping[str, int]) -> str:
    """In the notation that llguidance compiles. Raises InvalidParameter."""
    try:
        match grammar.kind:
            case "json_schema":
                layout: Any = JSON_LAYOUT
                made = LLMatcher.grammar_from_json_schema(grammar.source, layout)
            case "regex":
                made = LLMatcher.grammar_from_regex(grammar.source)
            case _:
                lark = with_tags(grammar.source, special) if grammar.is_lazy else grammar.source
                made = LLMatcher.grammar_from_lark(lark)
        return _behind_thought(made, grammar.thought_tags, special)
    except ValueError as error:
        raise InvalidParameter(report(grammar.kind, str(error)), param=grammar.kind) from None


def _behind_thought(made: str, tags: Sequence[str], special: Mapping[str, int]) -> str:
    """A grammar whose text may begin with a thought."""
    if not tags:
        return made
    opening, close = (json.dumps(tag, ensure_ascii=False) for tag in tags)
    frame = f"start: (tag_0 until_1 SPACE?)? @main\nSPACE: /[ \\t\\r\\n]{{1,{_MAX_SPACE}}}/\n"
    lark = with_tags(f"{frame}tag_0: {opening}\nuntil_1: {close}\n", special)
    own = {"lark_grammar": made}
    if made.startswith("{"):  # Lark stays as it is
        (own,) = json.loads(made)["grammars"]
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**own, "name": "main"}]})


def report(what: str, error: str) -> str:
    error = error.replace("<non-verbose/>", "")
    reason = "no text fits it" if _UNMATCHABLE in error else " ".join(error.split())
    return f"{what}: {reason[:_MAX_REPORT_LENGTH]}"
