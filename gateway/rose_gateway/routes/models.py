"""Models, as OpenAI lists them."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from rose_gateway.access.authentication import Caller
from rose_gateway.errors import ApiError
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.routes.dependencies import CallerDependency, ServicesDependency

router = APIRouter(tags=["models"])


class ModelAnswer(BaseModel):
    """As OpenAI has it and as Anthropic has it, in one. The times say nothing here: workers come
    and go, and the model is the same."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "roseinfer"
    type: Literal["model"] = "model"
    display_name: str
    lifecycle: Literal["active"] = "active"
    created_at: str = "1970-01-01T00:00:00Z"
    max_input_tokens: int | None
    context_length: int | None
    """tokens of prompt and answer together; null where nobody knows"""
    task: str
    """generate, embed or score"""
    dimensions: int | None
    """how many numbers a vector of it has; null of one that generates"""
    chat: bool
    """it has a chat template"""
    tool_format: str | None
    """how it writes calls of functions where tool_choice is auto"""
    reasoning_format: str | None
    """how it writes thoughts, which answers have in a field of their own"""
    template_variables: list[str] | None
    """what its chat template reads beside messages and tools; null where a worker does not say"""
    queue: str
    engine: str | None
    """rose, vllm or null; null where a worker does not say"""
    dtype: str | None
    adapter: str | None
    """the LoRA adapter that answers under this name; null for the model itself"""


class TruncationPolicy(BaseModel):
    mode: Literal["tokens"] = "tokens"
    limit: int = 10_000


class CodexModel(BaseModel):
    """A model as Codex' catalogue has it: what it offers the model, and how."""

    slug: str
    display_name: str
    description: str | None = None
    supported_reasoning_levels: list[dict[str, str]] = []
    shell_type: Literal["shell_command"] = "shell_command"
    visibility: Literal["list"] = "list"
    supported_in_api: bool = True
    priority: int = 0
    upgrade: None = None
    base_instructions: str = (
        "You are a coding agent in a terminal. Work on the task with the tools that you have until "
        "it is done: look at the files, change them with apply_patch, run what checks the change, "
        "and say at the end, in few words, what you did."
    )
    supports_reasoning_summaries: bool = False
    support_verbosity: bool = False
    default_verbosity: None = None
    apply_patch_tool_type: Literal["freeform"] = "freeform"
    truncation_policy: TruncationPolicy = TruncationPolicy()
    supports_parallel_tool_calls: bool = True
    context_window: int | None
    experimental_supported_tools: list[str] = []
    input_modalities: list[Literal["text"]] = ["text"]


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelAnswer]
    models: list[CodexModel] | None = Field(default=None, exclude_if=lambda models: models is None)
    """the same for Codex, which sends its version"""
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", summary="List the models that the caller may use")
async def list_models(
    services: ServicesDependency,
    caller: CallerDependency,
    client_version: Annotated[
        str | None, Query(max_length=64, description="Codex sends it, and reads `models`")
    ] = None,
) -> ModelList:
    names = await services.catalogue.names()
    usable = [
        (name, model) for name, model in sorted(names.items()) if may_use(caller, name, model)
    ]
    data = [_answer(name, model) for name, model in usable]
    answer = ModelList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )
    if client_version is not None:
        answer.models = [
            CodexModel(slug=name, display_name=name, context_window=model.context_tokens)
            for name, model in usable
            if model.chat
        ]
    return answer


@router.get("/v1/models/{model:path}", summary="Retrieve a model")
async def retrieve_model(
    model: str,
    services: ServicesDependency,
    caller: CallerDependency,
) -> ModelAnswer:
    served = await services.catalogue.resolve(model, None)
    if not may_use(caller, model, served):
        raise ApiError(
            404,
            f"the model {model!r} is none that this API key may use",
            param="model",
            code="model_not_found",
        )
    return _answer(model, served)


def may_use(caller: Caller, name: str, model: ServedModel) -> bool:
    """By its own name, or by an alias."""
    return caller.may_use(model.name) or caller.may_use(name)


def _answer(name: str, model: ServedModel) -> ModelAnswer:
    known = model.template_variables
    return ModelAnswer(
        id=name,
        display_name=name,
        max_input_tokens=model.context_tokens,
        context_length=model.context_tokens,
        task=model.task,
        dimensions=model.dimensions,
        chat=model.chat,
        tool_format=model.tool_format or None,
        reasoning_format=model.reasoning_format or None,
        template_variables=None if known is None else list(known),
        queue=model.queue,
        engine=model.engine or None,
        dtype=model.dtype or None,
        adapter=model.adapter,
    )
