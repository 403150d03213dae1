"""Stores the model's vocabulary in Redis if it is missing; the first worker of a model does so."""

import asyncio
import logging

from rose.errors import MalformedMessage
from rose.protocol import Partition
from rose.protocol.vocabulary import MAX_VOCABULARY_BYTES, encode_vocabulary
from rose.transport import BROKER_ERRORS
from rose_worker.broker import Broker
from rose_worker.engine import Engine

log = logging.getLogger("rose.vocabulary")


class VocabularyKeeper:
    """The announcer of the model learns which partitions lack its vocabulary, and reports it
    here."""

    def __init__(self, broker: Broker, engine: Engine) -> None:
        self._broker = broker
        self._engine = engine
        self._lacking: set[Partition] = set()
        self._wake = asyncio.Event()
        self._has_one = True

    def lacks(self, partition: Partition) -> None:
        """Reported again with every announcement until it is stored."""
        if self._has_one:
            self._lacking.add(partition)
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            # In a thread: it takes a second for a large one.
            packed = await asyncio.to_thread(self._pack)
            self._has_one = packed is not None
            while packed is not None and self._lacking:
                await self._store(self._lacking.pop(), packed)

    def _pack(self) -> bytes | None:
        tokens = self._engine.vocabulary()
        if tokens is None:
            return None
        packed = encode_vocabulary(tokens)
        if len(packed) > MAX_VOCABULARY_BYTES:
            log.warning(
                "the vocabulary of %d tokens is not kept in Redis: it is %d bytes, the limit is %d",
                len(tokens),
                len(packed),
                MAX_VOCABULARY_BYTES,
            )
            return None
        return packed

    async def _store(self, partition: Partition, packed: bytes) -> None:
        try:
            await self._broker.store_vocabulary(partition, packed)
            # Announced at once: until then a request for the texts of tokens gets none.
            await self._broker.announce(partition, self._engine.model, "keep")
        except (*BROKER_ERRORS, MalformedMessage) as error:
            log.warning(
                "partition %d has no vocabulary yet, which costs the text of single tokens: %s",
                partition.index,
                error,
            )
            return
        log.info("vocabulary stored in partition %d: %d bytes", partition.index, len(packed))
