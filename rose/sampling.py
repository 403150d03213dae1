"""How tokens are chosen: the one description of every sampling parameter.

The job schema, the engine, the options of the command lines and the table in docs/protocol.md
come from `SamplingParams`, so a new parameter begins as a field of it.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    LiteralString,
    NamedTuple,
    Self,
    TypedDict,
    get_args,
    get_origin,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from rose.errors import InvalidParameter
from rose.validation import describe

MAX_TOP_LOGPROBS = 20

_MAX_INT32 = 2**31 - 1
_MIN_DIVISOR = 2.0**-126
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1
# Each step looks for every stop string in the newest text. A gateway's callers may give half as
# many, and the gateway adds its own.
_MAX_STOPS, _MAX_STOP_LENGTH = 32, 256
#: Two for each tool of a job.
_MAX_TRIGGERS = 256
_MAX_IDS = 1024
# A request remembers every n-gram of its tokens.
_MAX_NGRAM_SIZE = 32
# What a worker compiles is bounded first.
_MAX_GRAMMAR_BYTES = 64 * 1024

#: How JSON that must fit a schema is written: in one form, as llguidance's options. What else may
#: stand between its pieces differs between versions of llguidance, and a worker that has another
#: one could not continue with such a text. A schema's own "x-guidance" goes before it.
JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammar(NamedTuple):
    """What the text must be; `kind` is the name of the parameter that says so."""

    kind: str
    source: str
    is_lazy: bool = False
    """it is a grammar of calls, as `rose.formats.call_grammar` writes it, among free text"""
    thought_tags: tuple[str, ...] = ()
    """the text may begin with a thought"""


def _bounded(text: str) -> str:
    size = len(text.encode())
    if size > _MAX_GRAMMAR_BYTES:
        raise PydanticCustomError(
            "too_long", f"has {size} bytes, the limit is {_MAX_GRAMMAR_BYTES}"
        )
    return text


def _json(text: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PydanticCustomError("no_json", f"is no JSON text: {type(error).__name__}") from None
    return text


TokenId = Annotated[int, Field(ge=0, le=_MAX_INT32)]
Number = Annotated[float, Field(allow_inf_nan=False)]


def _several(texts: Any) -> Any:
    if isinstance(texts, str):
        raise PydanticCustomError("no_list", "must be a list of texts, even of one")
    return texts


_Name = Annotated[str, Field(min_length=1, max_length=128)]
_Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_LENGTH)]
_Bias = Annotated[tuple[TokenId, Annotated[Number, Field(ge=-100, le=100)]], Field(strict=False)]
_GrammarText = Annotated[str, Field(min_length=1), AfterValidator(_bounded)]
_JsonText = Annotated[_GrammarText, AfterValidator(_json)]


class SamplingParams(BaseModel):
    """How the tokens of one request are chosen.

    Raises InvalidParameter for impossible values. Logits go through the repetition penalty (Keskar
    et al., CTRL, 2019), the frequency and presence penalty, `logit_bias`, bans (of ends before
    `min_new_tokens`, of repeated n-grams) and the grammar before temperature and filters.
    `logprobs` are log-softmax of the model's own logits, before all of that. At most one of
    `json_schema`, `regex` and `grammar` can be given.
    """

    # strict: "0.7" is not a temperature and 1.0 is not a count. A caller's mistakes surface where
    # they are made rather than as odd output.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_new_tokens: int = Field(
        default=256, ge=1, le=_MAX_INT32, description="maximum number of tokens to generate"
    )
    temperature: Number = Field(
        default=0.0,
        ge=0,
        le=1_000_000,
        description="divides the logits; 0 takes the most likely token",
    )
    top_k: int | None = Field(
        default=None, ge=1, le=_MAX_INT64, description="sample from the k most likely tokens"
    )
    top_p: Number = Field(
        default=1.0,
        gt=0,
        le=1,
        description="sample from the most likely tokens with this total probability",
    )
    min_p: Number = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="sample from tokens with at least this share of the highest probability",
    )
    seed: int | None = Field(
        default=None,
        ge=_MIN_INT64,
        le=_MAX_INT64,
        description="makes sampling repeatable; by default random, in a worker from the job's id",
    )
    # fail_fast, here and below: a million wrong items are one mistake, not a million reports,
    # which would take gigabytes.
    stop: Annotated[tuple[_Stop, ...], BeforeValidator(_several)] = Field(
        default=(),
        max_length=_MAX_STOPS,
        strict=False,
        fail_fast=True,
        description="stop strings, which end the output and are cut from it: at most "
        f"{_MAX_STOPS}, of 1 to {_MAX_STOP_LENGTH} characters",
    )
    shown_special: tuple[_Name, ...] = Field(
        default=(),
        max_length=_MAX_STOPS,
        strict=False,
        fail_fast=True,
        description="special tokens whose names are part of the text, where others are left out: "
        f"at most {_MAX_STOPS}",
    )
    shown_prompt_end: tuple[_Name, ...] = Field(
        default=(),
        max_length=_MAX_STOPS,
        strict=False,
        fail_fast=True,
        description="texts, such as <think>: where the prompt ends with one of them, and white "
        f"space behind it, the output's text begins with it: at most {_MAX_STOPS}",
    )
    stop_token_ids: tuple[TokenId, ...] = Field(
        default=(),
        max_length=_MAX_IDS,
        strict=False,
        fail_fast=True,
        description=f"tokens that end the output, as EOS does: at most {_MAX_IDS}",
    )
    ignore_eos: bool = Field(default=False, description="treat EOS as any other token")
    min_new_tokens: int = Field(
        default=0,
        ge=0,
        le=_MAX_INT32,
        description="minimum number of tokens: up to it EOS and stop ids are not generated, and "
        "stop strings do not count",
    )
    repetition_penalty: Number = Field(
        default=1.0,
        gt=0,
        le=100,
        description="divides positive and multiplies negative logits of the tokens in prompt and "
        "output",
    )
    presence_penalty: Number = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="subtracted from the logits of tokens in the output, once",
    )
    frequency_penalty: Number = Field(
        default=0.0,
        ge=-2,
        le=2,
        description="subtracted from the logits of tokens in the output, once for each occurrence",
    )
    no_repeat_ngram_size: int = Field(
        default=0,
        ge=0,
        le=_MAX_NGRAM_SIZE,
        description="no sequence of this many tokens occurs twice in prompt and output; 0: off",
    )
    logit_bias: tuple[_Bias, ...] = Field(
        default=(),
        max_length=_MAX_IDS,
        strict=False,
        fail_fast=True,
        description="pairs of a token id and a number from -100 to 100 that is added to its logit: "
        f"at most {_MAX_IDS}",
    )
    logprobs: bool = Field(default=False, description="return each token's log-probability")
    top_logprobs: int = Field(
        default=0,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="also those of this many most likely tokens; needs `logprobs`",
    )
    prompt_logprobs: bool = Field(
        default=False, description="also those of the prompt's tokens; needs `logprobs`"
    )
    json_schema: _JsonText | None = Field(
        default=None, description="the text is JSON of this schema (JSON text, up to 64 KiB)"
    )
    regex: _GrammarText | None = Field(
        default=None,
        description="the whole text matches this expression (Rust's dialect, up to 64 KiB)",
    )
    grammar: _GrammarText | None = Field(
        default=None,
        description="the text fits this Lark grammar (llguidance's dialect, up to 64 KiB)",
    )

    grammar_triggers: tuple[_Name, ...] = Field(
        default=(),
        max_length=_MAX_TRIGGERS,
        strict=False,
        fail_fast=True,
        description="texts: the grammar holds from each of them on up to its own end, and the text "
        "between is free; one that begins with ^ counts at the beginning of the text, white space "
        "aside, where the grammar must allow other text too",
    )
    grammar_once: bool = Field(
        default=False, description="with `grammar_triggers`: the end of the grammar ends the output"
    )
    thought_tags: tuple[_Name, ...] = Field(
        default=(),
        max_length=_MAX_STOPS,
        strict=False,
        fail_fast=True,
        description="texts, such as <think> and </think>: where the text begins with the first, it "
        "is free up to the second, and a grammar, schema or expression holds behind that; further "
        "ones end it too, for `grammar_triggers`",
    )
    thought_format: _Name = Field(
        default="think",
        description="how the model writes thoughts, a `reasoning_format`; for `thought_budget`",
    )
    thought_budget: int | None = Field(
        default=None,
        ge=0,
        le=_MAX_INT32,
        description="maximum number of tokens of thoughts: after them the end of a thought is "
        "written, and the answer follows",
    )

    if not TYPE_CHECKING:  # type checkers know the arguments from the fields

        def __init__(self, /, **values: Any) -> None:
            """Raises: InvalidParameter"""
            try:
                super().__init__(**values)
            except ValidationError as error:
                message = describe(error, whole="sampling", possible=POSSIBLE, known=NAMES)
                raise InvalidParameter(message) from None

        # Within a job pydantic validates the fields itself, at half the cost of calling this.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if problem := next(self._contradictions(), None):
            raise PydanticCustomError("contradiction", problem)
        return self

    def _contradictions(self) -> Iterator[LiteralString]:
        if self.min_new_tokens > self.max_new_tokens:
            yield "min_new_tokens is more than max_new_tokens"
        if self.top_logprobs and not self.logprobs:
            yield "top_logprobs needs logprobs"
        if self.prompt_logprobs and not self.logprobs:
            yield "prompt_logprobs needs logprobs"
        bias = self.logit_bias
        if bias and len({token_id for token_id, _ in bias}) < len(bias):
            yield "logit_bias names a token id twice"
        if (self.json_schema, self.regex, self.grammar).count(None) < 2:
            yield "only one of json_schema, regex and grammar can be given"
        if self.grammar_triggers and self.grammar is None:
            yield "grammar_triggers needs grammar"
        if self.grammar_once and not self.grammar_triggers:
            yield "grammar_once needs grammar_triggers"
        if len(self.thought_tags) == 1:
            yield "thought_tags needs a text that opens a thought and one that closes it"
        is_whole = self.constraint and not (self.grammar_triggers or self.thought_tags)
        if self.thought_budget is not None and is_whole:
            yield "thought_budget cannot go with a grammar of the whole text, which has no thoughts"
        if self.constraint is not None and self.ignore_eos:
            yield "ignore_eos cannot go with json_schema, regex or grammar: eos may end these"

    @property
    def constraint(self) -> Grammar | None:
        """What the text must be, if anything."""
        for kind in GRAMMARS:
            source = getattr(self, kind)
            if source is not None:
                is_lazy = bool(self.grammar_triggers)
                return Grammar(kind, source, is_lazy, () if is_lazy else self.thought_tags[:2])
        return None

    @property
    def do_sample(self) -> bool:
        """False for greedy decoding."""
        return self.temperature > 0

    @property
    def divisor(self) -> float:
        """What divides the logits; 0 for greedy decoding. A temperature whose inverse is no float32
        counts as the least that has one: the most likely tokens are the only ones with either."""
        return max(self.temperature, _MIN_DIVISOR) if self.do_sample else 0.0

    @property
    def needs_logits_processor(self) -> bool:
        """Whether the request's logits are not just taken as they are."""
        given = (
            self.no_repeat_ngram_size or self.logit_bias or self.min_new_tokens or self.constraint
        )
        return self.penalises or bool(given) or self.thought_budget is not None

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far change the logits of the next one."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def seeded(self, seed: int | None = None) -> Self:
        """The same parameters with a seed: their own, else the given one, else a random one."""
        if self.seed is not None:
            return self
        return self.model_copy(update={"seed": secrets.randbits(63) if seed is None else seed})


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments, for type checkers and editors."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    seed: int | None
    stop: list[str] | tuple[str, ...]
    shown_special: list[str] | tuple[str, ...]
    shown_prompt_end: list[str] | tuple[str, ...]
    stop_token_ids: list[int] | tuple[int, ...]
    ignore_eos: bool
    min_new_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: bool
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    grammar_triggers: list[str] | tuple[str, ...]
    grammar_once: bool
    thought_tags: list[str] | tuple[str, ...]
    thought_format: str
    thought_budget: int | None


#: The parameters of which at most one says what the text must be.
GRAMMARS = ("json_schema", "regex", "grammar")


class Parameter(NamedTuple):
    """A field of `SamplingParams`, as command lines, errors and docs show it."""

    name: str
    type: type
    """of one value: bool, int, float, str, or tuple for a pair"""
    takes_several: bool
    default: Any
    range: str
    """of a number, such as "from 0, below 1"; else empty"""
    meaning: str

    @property
    def possible(self) -> str:
        """What a number or a flag must be; empty for the others, whose meaning says it."""
        if self.type is bool:
            return "true or false"
        if self.takes_several or self.type not in (int, float):
            return ""
        kind = "an integer" if self.type is int else "a number"
        return f"{kind} {self.range}" + (", or none" if self.default is None else "")


def _parameter(name: str, field: FieldInfo) -> Parameter:
    kind: Any = field.annotation
    takes_several = get_origin(kind) is tuple
    if takes_several:
        kind, *_ = get_args(kind)
    while get_args(kind) and get_origin(kind) is not tuple:
        kind, *_ = get_args(kind)
    bounds = [
        f"{word} {getattr(item, bound)}"
        for bound, word in (("ge", "from"), ("gt", "above"), ("le", "up to"), ("lt", "below"))
        for item in field.metadata
        if hasattr(item, bound)
    ]
    return Parameter(
        name,
        get_origin(kind) or kind,
        takes_several,
        field.default,
        ", ".join(bounds),
        field.description or "",
    )


PARAMETERS = tuple(_parameter(name, field) for name, field in SamplingParams.model_fields.items())

NAMES = tuple(SamplingParams.model_fields)

#: What must be said of a wrong value, by name.
POSSIBLE = {parameter.name: parameter.possible for parameter in PARAMETERS if parameter.possible}
