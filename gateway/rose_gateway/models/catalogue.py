"""Which models there are, and which queue serves each: as the workers announce it."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rose import transport
from rose.protocol import Partition
from rose.protocol.announced_model import MODEL_FIELDS, AnnouncedModel, read_model
from rose_gateway.errors import ApiError

log = logging.getLogger("rose.gateway")

#: What was read so lately is believed.
_FRESH_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(AnnouncedModel):
    """A queue, and the model that its workers serve."""

    queue: str
    vocabulary: str = ""
    """fingerprint of its vocabulary; "" if it is not announced"""
    adapter: str | None = None
    """the LoRA adapter that is asked for; None for the model itself"""


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
        """Every name that a request may use: models, MODEL:ADAPTER, and aliases."""
        models = await self.models()
        names = {
            f"{model.name}:{adapter}": replace(model, adapter=adapter)
            for model in reversed(models)
            for adapter in model.adapters
        }
        names |= {model.name: model for model in reversed(models)}
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
                fields = (*MODEL_FIELDS, "vocabulary")
                *facts, vocabulary = await self._redis.execute(
                    "HMGET", Partition(queue).model, *fields
                )
                if (model := _served(queue, facts, vocabulary or b"")) is not None:
                    served.append(model)
        return served


def _served(queue: str, facts: list[Any], vocabulary: bytes) -> ServedModel | None:
    """None before the first worker came, or where somebody else has written there."""
    try:
        model = read_model(facts)
        return ServedModel(**model, queue=queue, vocabulary=vocabulary.decode()) if model else None
    except ValueError:
        log.warning("what queue %s says of its model is not what the protocol says", queue)
        return None
