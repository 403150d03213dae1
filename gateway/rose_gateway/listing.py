"""A page of a list, as OpenAI has it."""

from collections.abc import Sequence
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel

Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, data: Sequence[Any], *, has_more: bool) -> Self:
        """`data`: what has an id, as a field or as a key."""
        ids = [item["id"] if isinstance(item, dict) else item.id for item in data]
        return cls(
            data=list(data),
            first_id=ids[0] if ids else None,
            last_id=ids[-1] if ids else None,
            has_more=has_more,
        )
