"""Requests for embeddings, ranks and scores, and their answers."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from rose.protocol.jobs import MAX_DIMENSIONS, MAX_INPUTS
from rose_gateway.answers.endpoint import ServiceTier
from rose_gateway.embeddings.output_types import OutputType
from rose_gateway.requests.parsing import Unsupported
from rose_gateway.requests.sampling import RequestModel

_TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1, fail_fast=True)
]
_Text = Annotated[str, Field(min_length=1)]


def _few(value: Any) -> Any:
    """Before anything is made of them."""
    if isinstance(value, list) and len(value) > MAX_INPUTS and not isinstance(value[0], int):
        raise ValueError(f"may have {MAX_INPUTS} inputs at the most (it has {len(value)})")
    return value


_Texts = Annotated[
    list[_Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), BeforeValidator(_few)
]


class NumbersRequest(RequestModel):
    """What all requests for numbers may say."""

    model: Annotated[str, Field(min_length=1, description="a name of GET /v1/models")]
    service_tier: ServiceTier | None = Field(default=None, description="as for chat completions")
    deadline_s: Annotated[float, Field(gt=0, lt=1e9)] | None = Field(
        default=None, description="seconds after which the answer is not wanted any more"
    )
    user: str | None = Field(default=None, description="accepted, changes nothing")


class _TruncatingRequest(NumbersRequest):
    truncate: bool | None = Field(
        default=None, description="cut texts that are too long, which are refused otherwise"
    )


class EmbeddingsRequest(_TruncatingRequest):
    """Texts to embed. Null means that a field is not given."""

    input: Annotated[
        _Text
        | Annotated[list[_Text], Field(min_length=1, fail_fast=True)]
        | _TokenIds
        | Annotated[list[_TokenIds], Field(min_length=1, fail_fast=True)],
        BeforeValidator(_few),
        Field(description=f"a text or its token ids, or up to {MAX_INPUTS} of one kind"),
    ]
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = Field(
        default=None,
        description="the first ones of each vector, for a model that is trained for it",
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="base64: the bytes of a vector; float32 in little-endian"
    )
    output_dtype: OutputType | None = Field(
        default=None,
        description="int8 and uint8: a byte for each number; binary and ubinary: a bit",
    )
    prompt_name: Annotated[str, Field(max_length=128)] | None = Field(
        default=None,
        description='which of the model\'s prompts each text begins with, such as "query"; "" '
        "for none, by default the one that its files say",
    )


class _TextContent(RequestModel):
    type: Literal["text"]
    text: _Text

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type", "text") != "text":
            raise ValueError(f"is of the type {given['type']!r}, and {_OF_TEXT}")
        return given


class _EmbedInput(RequestModel):
    content: Annotated[list[_TextContent], Field(min_length=1, max_length=1)] = Field(
        description="one text"
    )


class EmbedRequest(NumbersRequest):
    """Texts to embed, as Cohere has it. Null means that a field is not given."""

    texts: _Texts | None = None
    inputs: (
        Annotated[
            list[_EmbedInput],
            Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True),
            BeforeValidator(_few),
        ]
        | None
    ) = Field(default=None, description="texts in another shape, instead of `texts`")
    input_type: Literal["search_query", "search_document", "classification", "clustering"] = Field(
        description="the model's prompt for it stands before each text, if it has one"
    )
    embedding_types: (
        Annotated[list[OutputType | Literal["base64"]], Field(min_length=1, max_length=6)] | None
    ) = Field(default=None, description="float by default; base64: float32, little-endian")
    output_dimension: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = Field(
        default=None,
        description="the first ones of each vector, for a model that is trained for it",
    )
    truncate: Literal["NONE", "END"] | None = Field(
        default=None, description="NONE refuses what is too long, which is cut otherwise"
    )


_OF_TEXT = "this server's models embed text alone"
EMBED_UNSUPPORTED: Unsupported = {
    "images": (([],), _OF_TEXT),
    "max_tokens": ((), "texts are cut at the length that the model takes: leave it out"),
    "priority": ((0,), "use service_tier"),
}


class _Document(RequestModel):
    text: _Text


class RerankRequest(_TruncatingRequest):
    """Documents to put into order. Null means that a field is not given."""

    query: _Text
    documents: Annotated[
        list[_Text | _Document],
        Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True, description="texts"),
        BeforeValidator(_few),
    ]
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="how many results; all by default"
    )
    return_documents: bool | None = Field(default=None, description="results have the texts too")
    truncate: bool | None = Field(
        default=None, description="false refuses what is too long, which is cut otherwise"
    )


class ScoreRequest(_TruncatingRequest):
    """Pairs of texts to score. Null means that a field is not given."""

    text_1: _Text | _Texts = Field(description="one for all of `text_2`, or one for each")
    text_2: _Text | _Texts


class NumbersUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | list[int] | str


class EmbeddingsAnswer(BaseModel):
    object: Literal["list"] = "list"
    data: list[EmbeddingAnswer]
    model: str
    usage: NumbersUsage


class EmbedAnswer(BaseModel):
    """As Cohere has it."""

    id: str
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
    embeddings: dict[str, list[list[float] | list[int] | str]]
    """by their types, in the order of the texts"""
    usage: NumbersUsage
    meta: dict[str, Any]


class DocumentAnswer(BaseModel):
    text: str


class RerankResult(BaseModel):
    index: int
    """of its document in the request"""
    relevance_score: float
    document: DocumentAnswer | None = None
    """with return_documents"""


class RerankAnswer(BaseModel):
    """As Cohere and Jina have it, in one. The best result is the first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: NumbersUsage
    meta: dict[str, Any]


class ScoreAnswer(BaseModel):
    object: Literal["score"] = "score"
    index: int
    score: float


class ScoresAnswer(BaseModel):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreAnswer]
    usage: NumbersUsage
