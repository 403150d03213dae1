"""The vocabularies of the queues' models, read from Redis when somebody asks for them."""

import asyncio
import logging
from collections import OrderedDict

from rose import transport
from rose.errors import MalformedMessage
from rose.protocol import Partition
from rose.protocol.vocabulary import decode_vocabulary
from rose_gateway.models.catalogue import ServedModel
from rose_gateway.models.vocabulary import Vocabulary

log = logging.getLogger("rose.gateway")

#: Vocabularies in memory, of some ten megabytes each.
_MAX_KEPT = 8


def vocabulary_key(model: ServedModel) -> str:
    """Where the workers of a queue keep it; "" if they have none."""
    if not model.vocabulary:
        return ""
    return Partition(model.queue).vocabulary(model.vocabulary)


class Vocabularies:
    """Belongs to one event loop."""

    def __init__(self, redis: transport.AsyncRedisClient) -> None:
        self._redis = redis
        self._kept: OrderedDict[str, Vocabulary] = OrderedDict()

    async def get(self, key: str) -> Vocabulary:
        """One without tokens where there is none.

        Raises: BrokerUnavailable
        """
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
            return known
        raw = None
        if key:
            with transport.broker_errors():
                raw = await self._redis.execute("GET", key)
        if raw is None:
            return Vocabulary()
        # Up to a second for the largest: not where the streams run.
        vocabulary = await asyncio.to_thread(_read, raw)
        self._kept[key] = vocabulary
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return vocabulary


def _read(raw: bytes) -> Vocabulary:
    """One without tokens where somebody else has written there."""
    try:
        return Vocabulary(decode_vocabulary(raw))
    except MalformedMessage as error:
        log.warning("a vocabulary cannot be read: %s", error)
        return Vocabulary()
