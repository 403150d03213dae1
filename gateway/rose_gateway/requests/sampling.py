"""OpenAI's names for how tokens are chosen, and our own beside them, as `SamplingParams` fields.

What this project adds to OpenAI's parameters has the names under which other open servers know
them. A value that is absent or null is the default.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from rose.protocol.jobs import MAX_CACHE_SALT
from rose.sampling import SamplingParams
from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.json_schema import followed

#: Names of functions and of schemas.
NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"

#: Choices draw with the seeds after the given one.
_MAX_SEED = 2**63 - 1 - 1024
_MIN_SEED = -(2**63)
MAX_GRAMMAR_BYTES = 64 * 1024
_MAX_IDS = 1024
#: Of one object of a request whose fields are known by their names.
MAX_FIELDS = 256
#: Python refuses to read longer numbers.
_MAX_ID_DIGITS = 10
#: Characters that stand for something else in a regular expression.
_REGEX_METACHARACTERS = frozenset(r"\.+*?()|[]{}^$#&-~")
#: The least probability that top_p may ask for: with it only the likeliest token is left.
_MIN_TOP_P = 1e-9

_Number = Annotated[float, Field(allow_inf_nan=False)]
_TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Source = Annotated[str, Field(min_length=1)]
_StopText = Annotated[str, Field(max_length=256)]

_Choice = Annotated[list[_Source], Field(min_length=1, max_length=_MAX_IDS, fail_fast=True)]
_OLDER_NAME = "vLLM's older name for a part of `structured_outputs`"


def few(limit: int, what: str) -> Callable[[Any], Any]:
    """A check of how many entries a mapping has, before any of them is looked at: each that is
    wrong would be an error of its own."""

    def check(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > limit:
            raise PydanticCustomError(
                "too_long",
                "has {number} {what}, the limit is {limit}",
                {"number": len(given), "what": what, "limit": limit},
            )
        return given

    return check


@cache
def names_of(model: type[BaseModel]) -> frozenset[str]:
    """Of the fields, as a request calls them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


class RequestModel(BaseModel):
    """A part of a request. Fields that nobody knows are refused, and so are values of another type
    than is documented."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        """Each field that nobody knows is an error of its own; null asks for nothing."""
        if not isinstance(given, dict) or given.keys() <= names_of(cls):
            return given
        if len(given) > MAX_FIELDS:
            raise PydanticCustomError(
                "too_many_fields", "has more than {limit} fields", {"limit": MAX_FIELDS}
            )
        known = names_of(cls)
        return {k: v for k, v in given.items() if v is not None or k in known}


class ReturnedModel(BaseModel):
    """What a model has made. Programs send it back with fields that we have never heard of, as
    OpenAI's libraries add some: they are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class StructuredOutputs(RequestModel):
    """What the text must be, as clients of vLLM say it: one of these."""

    json_: dict[str, Any] | _Source | None = Field(
        default=None, alias="json", description="JSON of this schema, which may be JSON text"
    )
    json_object: bool | None = None
    regex: _Source | None = None
    choice: _Choice | None = None
    grammar: _Source | None = None


class SamplingRequest(RequestModel):
    """The parameters that every endpoint which generates text knows."""

    temperature: Annotated[_Number, Field(ge=0, le=2)] | None = Field(
        default=None, description="divides the logits, 1 by default; 0 takes the most likely token"
    )
    top_p: Annotated[_Number, Field(ge=0, le=1)] | None = Field(
        default=None, description="sample from the most likely tokens with this total probability"
    )
    presence_penalty: Annotated[_Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[_Number, Field(ge=-2, le=2)] | None = None

    # Not OpenAI's: what the engine can do beyond.
    top_k: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = Field(
        default=None, description="sample from the k most likely tokens; 0 and -1: from all"
    )
    min_p: Annotated[_Number, Field(ge=0, lt=1)] | None = Field(
        default=None,
        description="sample from tokens with at least this share of the highest probability",
    )
    repetition_penalty: Annotated[_Number, Field(gt=0, le=100)] | None = Field(
        default=None, description="above 1, makes tokens of prompt and output less likely"
    )
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=32)] | None = Field(
        default=None, description="no sequence of this many tokens occurs twice; 0: off"
    )
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="minimum number of tokens"
    )
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=_MAX_IDS, fail_fast=True)] | None = (
        Field(default=None, description="tokens that end the output, as the end of text does")
    )
    ignore_eos: bool | None = Field(
        default=None, description="treat the end of text as any other token"
    )
    regex: _Source | None = Field(
        default=None, description="the whole text matches this expression (Rust's dialect)"
    )
    grammar: _Source | None = Field(
        default=None, description="the text fits this Lark grammar (llguidance's dialect)"
    )
    structured_outputs: StructuredOutputs | None = Field(
        default=None,
        description="vLLM's: one of `json` (a schema), `json_object`, `regex`, `choice` (texts of "
        "which it is one) and `grammar`",
    )
    guided_json: dict[str, Any] | _Source | None = Field(default=None, description=_OLDER_NAME)
    guided_regex: _Source | None = Field(default=None, description=_OLDER_NAME)
    guided_choice: _Choice | None = Field(default=None, description=_OLDER_NAME)
    guided_grammar: _Source | None = Field(default=None, description=_OLDER_NAME)
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)] | None = Field(
        default=None,
        description="vLLM's: cached prefixes are shared among requests with the same one only, "
        "always within the tenant of the key, or within the key",
    )
    deadline_s: Annotated[_Number, Field(ge=0.001, le=1e8)] | None = Field(
        default=None,
        description="seconds until the deadline: what still waits or runs then fails with "
        "deadline_exceeded",
    )


class DetailedSamplingRequest(SamplingRequest):
    """What chat completions and completions know beyond."""

    seed: Annotated[int, Field(ge=_MIN_SEED, le=_MAX_SEED)] | None = Field(
        default=None, description="makes sampling repeatable; choice i uses seed + i"
    )
    stop: _StopText | Annotated[list[_StopText], Field(max_length=16, fail_fast=True)] | None = (
        Field(
            default=None,
            description="stop strings, which end the output and are cut from it: 16 at most; an "
            "empty one is ignored",
        )
    )
    logit_bias: (
        Annotated[
            dict[str, Annotated[_Number, Field(ge=-100, le=100)]],
            BeforeValidator(few(_MAX_IDS, "tokens")),
        ]
        | None
    ) = Field(default=None, description="numbers added to the logits of tokens, by token id")


class TextFormat(RequestModel):
    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    type: Literal["json_object"]


class JsonValueFormat(JsonObjectFormat):
    """As Hugging Face's clients say it: the schema stands beside the type."""

    value: dict[str, Any] | None = None


class JsonSchema(RequestModel):
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = Field(
        default=None,
        description="false leaves out what a grammar cannot follow of the schema, such as "
        "uniqueItems; else it is refused",
    )


class JsonSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonValueFormat | JsonSchemaFormat, Field(discriminator="type")
]


def sampling_fields(
    request: SamplingRequest, *, max_new_tokens: int, default_temperature: float = 1.0
) -> dict[str, Any]:
    """The fields of `SamplingParams` that a request asks for, without those that keep their
    defaults.

    Raises:
        BadRequest: some of its values contradict each other.
    """
    top_p, top_k = request.top_p, request.top_k
    fields: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": default_temperature if request.temperature is None else request.temperature,
        "top_p": None if top_p is None else max(top_p, _MIN_TOP_P),
        "top_k": None if top_k in (0, -1) else top_k,
        "min_p": request.min_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "repetition_penalty": request.repetition_penalty,
        "no_repeat_ngram_size": request.no_repeat_ngram_size,
        "min_new_tokens": request.min_tokens,
        "stop_token_ids": request.stop_token_ids and tuple(request.stop_token_ids),
        "ignore_eos": request.ignore_eos,
        **_grammar_fields(request),
    }
    if isinstance(request, DetailedSamplingRequest):
        fields |= {
            "seed": request.seed,
            "stop": _stop_texts(request.stop),
            "logit_bias": _logit_bias(request.logit_bias),
        }
    given = {name: value for name, value in fields.items() if value is not None}
    if given.get("min_new_tokens", 0) > max_new_tokens:
        raise BadRequest(
            f"min_tokens is {request.min_tokens}, and at most {max_new_tokens} tokens are made",
            "min_tokens",
        )
    return given


def grammar_param(request: SamplingRequest, of_format: str = "") -> str:
    """What the request calls the grammar of its text: `of_format` is that of a field which only its
    endpoint has. Empty if there is none. Raises: BadRequest"""
    found = _structured_outputs(request)
    own = found[1] if found else next((n for n in ("regex", "grammar") if getattr(request, n)), "")
    return of_format or own


def _grammar_fields(request: SamplingRequest) -> dict[str, Any]:
    """Raises: BadRequest"""
    own = {
        "regex": bounded(request.regex, "regex"),
        "grammar": bounded(request.grammar, "grammar"),
    }
    if (found := _structured_outputs(request)) is None:
        return own
    wanted, param = found
    if request.regex or request.grammar:
        raise BadRequest(
            f"{param.split('.')[0]} cannot go with regex or grammar", param.split(".")[0]
        )
    if wanted.json_object:
        return json_grammar(None, param)
    if isinstance(wanted.json_, dict):
        return json_grammar(wanted.json_, param)
    if wanted.json_ is not None:
        return {"json_schema": bounded(wanted.json_, param)}
    if wanted.choice is not None:
        return {"regex": bounded("|".join(map(_escaped, wanted.choice)), param)}
    return {"regex": bounded(wanted.regex, param), "grammar": bounded(wanted.grammar, param)}


def _structured_outputs(request: SamplingRequest) -> tuple[StructuredOutputs, str] | None:
    """With the name of the parameter that says it. Raises: BadRequest"""
    older = {
        kind: value
        for kind in ("json", "regex", "choice", "grammar")
        if (value := getattr(request, f"guided_{kind}")) is not None
    }
    names = [f"guided_{kind}" for kind in older]
    wanted, param = request.structured_outputs, "structured_outputs"
    renamed = StructuredOutputs(**older) if older else None
    # A client that does not know how old its server is says the same under both names.
    if len(older) > 1 or (renamed is not None and wanted not in (None, renamed)):
        raise BadRequest(
            f"{names[-1]} cannot go with another that says what the text is", names[-1]
        )
    if renamed is not None:
        return renamed, names[0]
    if wanted is None:
        return None
    if len(given := [name for name, value in wanted if value not in (None, False)]) != 1:
        raise BadRequest(
            f"{param}: give one of json, json_object, regex, choice and grammar", param
        )
    return wanted, f"{param}.{given[0].rstrip('_')}"


def _escaped(text: str) -> str:
    """A regular expression that only `text` fits."""
    return "".join(f"\\{c}" if c in _REGEX_METACHARACTERS else c for c in text)


def checked(fields: Mapping[str, Any], **parts: Mapping[str, Any]) -> dict[str, Any]:
    """All the fields together: a request's own, and those that `parts` of it stand for, such as the
    grammar of its tools, by the names of these parts.

    Raises:
        BadRequest: two of them cannot go together.
    """
    merged = dict(fields)
    given = list(constraints(fields))
    for name, part in parts.items():
        merged |= part
        given += [name for _ in constraints(part)]
    if len(given) > 1:
        raise BadRequest(
            "only one thing can say what the text must be: a response format, regex, grammar, or "
            "tools that must be called",
            given[-1],
        )
    if given and merged.get("ignore_eos"):
        raise BadRequest("ignore_eos cannot go with a grammar, whose end it is", "ignore_eos")
    _validate(merged)
    return merged


#: Types of values of which a check is remembered: those that a caller cannot fill a memory with.
_PLAIN = (int, float, bool)


def _validate(fields: Mapping[str, Any]) -> None:
    """Raises: InvalidParameter: they are no SamplingParams."""
    values = fields.values()
    if all(type(value) in _PLAIN for value in values):
        _validate_cached(tuple(fields), tuple(map(type, values)), tuple(values))
    else:
        SamplingParams(**fields)


@lru_cache(maxsize=1024)
def _validate_cached(
    names: tuple[str, ...],
    types: tuple[type, ...],  # noqa: ARG001 - 1, 1.0 and True are one key else
    values: tuple[Any, ...],
) -> None:
    """Remembered, since the requests of a caller mostly ask for the same."""
    SamplingParams(**dict(zip(names, values, strict=True)))


def constraints(fields: Mapping[str, Any]) -> Iterator[str]:
    """The names of the fields that say what the text must be."""
    return (name for name in ("json_schema", "regex", "grammar") if fields.get(name) is not None)


def format_param(wanted: ResponseFormat | None) -> str:
    """What of chat's `response_format` may be refused."""
    match wanted:
        case JsonValueFormat():
            return "response_format.value"
        case JsonSchemaFormat():
            return "response_format.json_schema.schema"
    return ""


def format_fields(wanted: ResponseFormat | None, left_out: list[str]) -> dict[str, Any]:
    """The grammar of chat's `response_format`. `left_out` is given what it does not follow.

    Raises: BadRequest
    """
    match wanted:
        case JsonValueFormat(value=schema):
            return json_grammar(schema, format_param(wanted))
        case JsonSchemaFormat(json_schema=named):
            strict = named.strict is not False
            param = format_param(wanted)
            return json_grammar(named.schema_, param, strict=strict, left_out=left_out)
    return {}


def json_grammar(
    schema: Mapping[str, Any] | None,
    param: str,
    *,
    strict: bool = True,
    left_out: list[str] | None = None,
) -> dict[str, Any]:
    """The text is JSON of `schema`; of any object where there is none. What a grammar cannot follow
    of it is left out where it is not `strict`, and `left_out` is given it.

    Raises:
        BadRequest: it is too large, no JSON, or cannot be followed.
    """
    if schema is None:
        schema = {"type": "object"}
    source = json_text(followed(schema, param, strict=strict, left_out=left_out), param)
    return {"json_schema": bounded(source, param)}


def json_text(value: Any, param: str) -> str:
    """Raises: BadRequest: it holds what JSON cannot say."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"{param} cannot be written as JSON: {error}", param) from None


def bounded(source: str | None, param: str) -> str | None:
    """Raises: BadRequest: it is longer than a worker compiles."""
    size = 0 if source is None else len(source.encode(errors="replace"))
    if size > MAX_GRAMMAR_BYTES:
        raise BadRequest(f"{param} has {size} bytes, the limit is {MAX_GRAMMAR_BYTES}", param)
    return source


def _stop_texts(stop: str | list[str] | None) -> tuple[str, ...] | None:
    if not stop:
        return None
    return (stop,) if isinstance(stop, str) else tuple(text for text in stop if text)


def _logit_bias(biases: Mapping[str, float] | None) -> tuple[tuple[int, float], ...] | None:
    """Raises: BadRequest: a key is no token id."""
    if not biases:
        return None
    pairs: dict[int, float] = {}
    for name, bias in biases.items():
        if not (name.isascii() and name.isdigit() and len(name) <= _MAX_ID_DIGITS):
            raise BadRequest(f"logit_bias: {name[:32]!r} is no token id", "logit_bias")
        token_id = int(name)
        if token_id >= 2**31 or token_id in pairs:
            raise BadRequest(
                f"logit_bias: {name!r} is too large for a token id, or is there twice", "logit_bias"
            )
        pairs[token_id] = float(bias)
    return tuple(pairs.items())
