"""At its start a worker looks whether a restart of Redis would lose anything, and says so."""

from __future__ import annotations

import logging
import threading

from rose.protocol import Partition
from rose.transport import BROKER_ERRORS
from rose.transport.connection import connect
from rose.transport.replay import Replay, primaries, replay_of
from rose_worker.settings import WorkerSettings

log = logging.getLogger("rose.worker")

_SAYS = {
    Replay.LOSSY: (
        logging.ERROR,
        "a restart of Redis would lose jobs and tokens: its user default may not replay what "
        "scripts wrote; see docs/redis.md, Users",
    ),
    Replay.UNKNOWN: (
        logging.WARNING,
        "cannot see whether a restart of Redis would lose what scripts wrote, since this user may "
        "not ACL DRYRUN: ask `rose doctor` as an administrator; see docs/redis.md, Users",
    ),
    Replay.WHOLE: (logging.INFO, "a restart of Redis replays what scripts wrote"),
}


def look_beside(settings: WorkerSettings) -> None:
    """In a thread of its own: a Redis that does not answer holds nobody up."""
    threading.Thread(target=_look, args=(settings,), daemon=True, name="durability").start()


def _look(settings: WorkerSettings) -> None:
    try:
        client = connect(settings)
        found = {replay_of(server, Partition(settings.queue)) for server in primaries(client)}
        client.close()
    except BROKER_ERRORS as error:
        log.info("not known whether a restart of Redis would lose anything: %s", error)
        return
    for replay, (level, says) in _SAYS.items():
        if replay in found:
            log.log(level, says)
            return
