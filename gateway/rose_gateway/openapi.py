"""How routes that read their bodies themselves describe them in the OpenAPI document."""

from typing import Any

from pydantic import BaseModel

from rose_gateway.access.authentication import JOB_ID_HEADER

#: For the 204 of a stream that a reader resumes.
FOLLOWED = {"description": "The reader has it all, and need not come again."}


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`: the schema of the body stands where it is used."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": inlined(model)}},
        }
    }


def answer_of(model: type[BaseModel], *, stream: str | None = None) -> dict[int | str, Any]:
    """For a route's `responses`. `stream`: what the events are, where they can be asked for."""
    content: dict[str, Any] = {"application/json": {"schema": inlined(model, "serialization")}}
    if stream is not None:
        content["text/event-stream"] = stream_of(stream)
    return {
        200: {
            "description": "The answer.",
            "content": content,
            "headers": {
                JOB_ID_HEADER: {
                    "description": "the job that answers, for /v1/jobs",
                    "schema": {"type": "string"},
                }
            },
        }
    }


def stream_of(data: str) -> dict[str, Any]:
    """An event stream; `data` says what the data of its events are."""
    return {
        "schema": {
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "event": {"type": "string"},
                "data": {"type": "string", "description": data},
            },
            "required": ["data"],
        }
    }


def inlined(model: type[BaseModel], mode: Any = "validation") -> dict[str, Any]:
    """The JSON schema of a model without references: none of our models contains itself. Generators
    of clients make a class of each object, named by its title: what stands in two places has none.
    """
    schema = model.model_json_schema(mode=mode)
    definitions = schema.pop("$defs", {})

    def resolved(value: Any) -> Any:
        if isinstance(value, list):
            return [resolved(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            name = value["$ref"].removeprefix("#/$defs/")
            rest = {key: item for key, item in value.items() if key != "$ref"}
            definition = {key: item for key, item in definitions[name].items() if key != "title"}
            return resolved({**definition, **rest})
        # A discriminator's mapping refers to definitions by name.
        return {
            key: resolved(item)
            for key, item in value.items()
            if not (key == "discriminator" and isinstance(item, dict))
        }

    made: dict[str, Any] = resolved(schema)
    return made
