"""A page of a list, as OpenAI has it."""

from collections.abc import Sequence
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel

from rose_gateway.requests.bad_request import BadRequest

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

    @classmethod
    def after(
        cls, items: Sequence[dict[str, Any]], item_id: str | None, limit: int, missing: str
    ) -> Self:
        """Those of `items` that follow the one with this id, or all if none is named.

        Raises: BadRequest: there is none, as `missing` says.
        """
        start = 0
        if item_id is not None:
            ids = [item["id"] for item in items]
            if item_id not in ids:
                raise BadRequest(f"after: {missing}", "after")
            start = ids.index(item_id) + 1
        page = items[start : start + limit]
        return cls.of(page, has_more=start + limit < len(items))
