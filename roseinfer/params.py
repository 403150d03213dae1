"""What one request wants of the sampler, checked."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import NamedTuple

from rose.errors import InvalidParameter

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_MOST_BIASES = 1024
MOST_TOP_LOGPROBS = 20
_MOST_GRAMMAR_BYTES = 64 * 1024


class Grammar(NamedTuple):
    """What the text must be; `kind` is the name of the parameter that says so."""

    kind: str
    source: str


def _check(ok: bool, name: str, value: object, wanted: str) -> None:
    if not ok:
        raise InvalidParameter(f"{name}={value!r} is not possible: it must be {wanted}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request wants of the sampler. Raises InvalidParameter for impossible values.

    `temperature` 0.0 means greedy. `top_k` None, `top_p` 1.0 and `min_p` 0.0 filter nothing.
    A `seed` of None is replaced by a random one when the session is created. `stop` strings are
    cut from the text; `stop_token_ids` end the request like EOS does. `ignore_eos` lets a request
    run through EOS until another reason ends it. The first `min_new_tokens` tokens never end it:
    EOS and stop ids are not drawn, and stop strings not looked for in their text.

    `repetition_penalty` divides positive and multiplies negative logits of every token in prompt
    and output (Keskar et al., CTRL, 2019). `frequency_penalty` is subtracted once for each time a
    token was generated, `presence_penalty` once if it was. `logit_bias` holds (token id, bias)
    pairs that are added after the penalties.

    With `logprobs` every token comes with its log-probability, and with those of the
    `top_logprobs` likeliest ones: log-softmax of the model's own logits, before all of the above.

    At most one of `json_schema` (JSON text), `regex` (Rust's dialect, the whole text must match)
    and `grammar` (Lark, llguidance's dialect) says what the text must be.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_ends()
        self._check_penalties()
        self._check_logprobs()
        self._check_grammar()

    def _check_numbers(self) -> None:
        count, top_k, seed = self.max_new_tokens, self.top_k, self.seed
        _check(_is_int(count) and count >= 1, "max_new_tokens", count, "an integer of at least 1")
        heat = self.temperature
        _check(_is_number(heat) and 0 <= heat <= 1e6, "temperature", heat, "between 0 and 1e6")
        fits = top_k is None or (_is_int(top_k) and top_k >= 1)
        _check(fits, "top_k", top_k, "an integer of at least 1, or None for no limit")
        _check(
            _is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "above 0, up to 1"
        )
        _check(
            _is_number(self.min_p) and 0 <= self.min_p < 1, "min_p", self.min_p, "from 0, below 1"
        )
        fits = seed is None or (_is_int(seed) and _INT64_MIN <= seed <= _INT64_MAX)
        _check(fits, "seed", seed, "a signed 64-bit integer, or None")

    def _check_ends(self) -> None:
        fits = isinstance(self.stop, tuple) and all(isinstance(s, str) and s for s in self.stop)
        _check(fits, "stop", self.stop, "a tuple of non-empty strings")
        ids = self.stop_token_ids
        fits = isinstance(ids, tuple) and all(_is_int(i) and i >= 0 for i in ids)
        _check(fits, "stop_token_ids", ids, "a tuple of token ids")
        _check(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        least, most = self.min_new_tokens, self.max_new_tokens
        fits = _is_int(least) and 0 <= least <= most
        _check(fits, "min_new_tokens", least, f"an integer from 0 to max_new_tokens={most}")

    def _check_penalties(self) -> None:
        penalty = self.repetition_penalty
        fits = _is_number(penalty) and 0 < penalty <= 100
        _check(fits, "repetition_penalty", penalty, "above 0, up to 100")
        for name in ("presence_penalty", "frequency_penalty"):
            penalty = getattr(self, name)
            _check(_is_number(penalty) and -2 <= penalty <= 2, name, penalty, "between -2 and 2")
        bias = self.logit_bias
        fits = isinstance(bias, tuple) and len(bias) <= _MOST_BIASES and all(map(_is_bias, bias))
        if not fits or len({token_id for token_id, _ in bias}) < len(bias):
            raise InvalidParameter(
                f"logit_bias must be a tuple of at most {_MOST_BIASES} pairs: a token id, each "
                "once, and a bias from -100 to 100"
            )

    def _check_logprobs(self) -> None:
        top = self.top_logprobs
        _check(isinstance(self.logprobs, bool), "logprobs", self.logprobs, "True or False")
        fits = _is_int(top) and 0 <= top <= MOST_TOP_LOGPROBS
        _check(fits, "top_logprobs", top, f"an integer from 0 to {MOST_TOP_LOGPROBS}")
        _check(self.logprobs or top == 0, "top_logprobs", top, "0 without logprobs")

    def _check_grammar(self) -> None:
        given = self._grammars()
        for name, source in given:
            if not isinstance(source, str) or not source:
                raise InvalidParameter(f"{name} must be a text that is not empty")
            size = len(source.encode(errors="replace"))
            if size > _MOST_GRAMMAR_BYTES:
                raise InvalidParameter(
                    f"{name} has {size} bytes: it may have {_MOST_GRAMMAR_BYTES}"
                )
        if len(given) > 1:
            names = ", ".join(name for name, _ in given)
            raise InvalidParameter(f"{names}: only one of them can be given")
        if given and self.ignore_eos:
            raise InvalidParameter(f"ignore_eos cannot go with {given[0].kind}, which eos may end")

    def _grammars(self) -> list[Grammar]:
        named = ("json_schema", self.json_schema), ("regex", self.regex), ("grammar", self.grammar)
        return [Grammar(name, source) for name, source in named if source is not None]

    @property
    def constraint(self) -> Grammar | None:
        """What the text must be, if anything."""
        return next(iter(self._grammars()), None)

    @property
    def do_sample(self) -> bool:
        """False for greedy decoding."""
        return self.temperature > 0

    @property
    def adjusts(self) -> bool:
        """Whether the request's logits are not just taken as they are."""
        given = self.logit_bias or self.min_new_tokens or self.constraint
        return self.penalises or bool(given)

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far change the logits of the next one."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def seeded(self) -> SamplingParams:
        """The same parameters with a seed: the given one, or a fresh random one."""
        if self.seed is not None:
            return self
        return replace(self, seed=secrets.randbits(63))


def _is_bias(pair: object) -> bool:
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    token_id, bias = pair
    return _is_int(token_id) and token_id >= 0 and _is_number(bias) and -100 <= bias <= 100
