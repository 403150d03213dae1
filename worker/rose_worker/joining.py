"""Joins a queue: all of its workers serve one model, and all of its partitions.

A worker of another model waits until those that live have left, or have been silent for so long
that they count as dead. With `replace` it does not wait, and they take no new jobs.
"""

import asyncio
import logging
import time
from typing import Literal

from rose.errors import ConfigurationError, ModelConflict
from rose.protocol import Partition
from rose.protocol.calls import ALIVE_S, Standing
from rose_worker.broker import Broker
from rose_worker.engine import ModelInfo
from rose_worker.tasks import at_least_one

log = logging.getLogger("rose.worker")

#: A killed worker counts as alive for a while. After this time an operator must act.
_PATIENCE_S = ALIVE_S + 5.0

_AGAIN_S = 1.0


async def join(
    broker: Broker, model: ModelInfo, *, replace: bool, patience_s: float = _PATIENCE_S
) -> None:
    """Raises:
    ModelConflict: other workers still serve another model.
    ConfigurationError: they have another number of partitions.
    RedisError, MalformedMessage
    """
    mode: Literal["join", "replace"] = "replace" if replace else "join"
    give_up_at = time.monotonic() + patience_s
    warned = False
    while True:
        try:
            return await at_least_one(
                _announce(broker, partition, model, mode) for partition in broker.partitions
            )
        except (ModelConflict, ConfigurationError) as error:
            if time.monotonic() > give_up_at:
                raise
            if not warned:
                log.warning("waiting for up to %.0f s: %s", patience_s, error)
                warned = True
        await asyncio.sleep(_AGAIN_S)


async def _announce(
    broker: Broker, partition: Partition, model: ModelInfo, mode: Literal["join", "replace"]
) -> None:
    announced = await broker.announce(partition, model, mode)
    if announced.standing is Standing.DIVIDED:
        raise ConfigurationError(
            f"ROSE_PARTITIONS is {len(broker.partitions)}, and the workers of queue "
            f"{partition.queue} have {announced.partitions}: give all workers and producers the "
            "same number, or stop the others first"
        )
    if announced.standing is Standing.REFUSED:
        raise ModelConflict(
            f"queue {partition.queue} is served by workers with {announced.model} "
            f"({announced.fingerprint or 'without a fingerprint'}), and this one has {model.name} "
            f"({model.fingerprint}): stop them first, take another queue, or set "
            "ROSE_REPLACE_MODEL=true (docs/operations.md, A new model)"
        )
