"""Which models there are, and which queue serves each: as the workers announce it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rose import transport
from rose.protocol import Partition
from rose_gateway.errors import ApiError

_FACTS = ("name", "context_tokens", "chat", "tool_format", "vocabulary")
#: What was read so lately is believed.
_FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A queue, and the model that its workers serve."""

    queue: str
    name: str
    context_tokens: int | None
    chat: bool
    """it has a chat template; unknown counts as yes"""
    tool_format: str
    """how the chat template writes calls of functions ("hermes"); "" if it does not, or unknown"""
    vocabulary: str
    """fingerprint of its vocabulary; "" if it is not announced"""


class Catalogue:
    """Belongs to one event loop."""

    def __init__(
        self,
        redis: transport.AsyncRedisClient,
        queues: Iterable[str],
        aliases: Mapping[str, str],
    ) -> None:
        self._redis = redis
        self._queues = tuple(queues)
        self._aliases = dict(aliases)
        self._models: list[ServedModel] = []
        self._read_at = float("-inf")

    async def models(self) -> list[ServedModel]:
        """Of every queue whose workers have announced one.

        Raises: BrokerUnavailable
        """
        if time.monotonic() - self._read_at > _FRESH_S:
            self._models = await self._read()
            self._read_at = time.monotonic()
        return self._models

    async def names(self) -> dict[str, ServedModel]:
        """Every name that a request may use, aliases among them."""
        models = await self.models()
        names = {model.name: model for model in reversed(models)}
        queues = {model.queue: model for model in models}
        for alias, target in self._aliases.items():
            if (model := names.get(target) or queues.get(target)) is not None:
                names.setdefault(alias, model)
        return names

    async def resolve(self, name: str) -> ServedModel:
        """Raises: ApiError: 404 model_not_found; BrokerUnavailable"""
        model = (await self.names()).get(name)
        if model is None:
            raise ApiError(
                404,
                f"the model {name!r} is not served here: GET /v1/models lists those that are",
                param="model",
                code="model_not_found",
            )
        return model

    async def _read(self) -> list[ServedModel]:
        served = []
        with transport.broker_errors():
            for queue in self._queues:
                facts = await self._redis.execute("HMGET", Partition(queue).model, *_FACTS)
                if facts[0] is not None:
                    served.append(_served(queue, facts))
        return served


def _served(queue: str, facts: list[Any]) -> ServedModel:
    name, context, chat, tool_format, vocabulary = (
        None if fact is None else fact.decode(errors="replace") for fact in facts
    )
    return ServedModel(
        queue,
        str(name),
        int(context) if context and context.isdecimal() else None,
        chat != "0",
        tool_format or "",
        vocabulary or "",
    )
