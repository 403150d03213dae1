"""At its start a worker checks whether Redis may lose anything, and logs it."""

import logging
import threading
from typing import Any

import redis

from rose.protocol import Partition
from rose.transport import BROKER_ERRORS
from rose.transport.connection import connect
from rose.transport.failures import NO_LOG, loss_of_eviction
from rose.transport.replay import Replay, primaries, replay_of, user_of
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


def check_in_background(settings: WorkerSettings) -> None:
    """In a thread of its own: a Redis that does not answer delays nobody."""
    threading.Thread(target=_check, args=(settings,), daemon=True, name="durability").start()


def _check(settings: WorkerSettings) -> None:
    try:
        client = connect(settings)
        servers = primaries(client)
        found = {replay_of(server, Partition(settings.queue)) for server in servers}
        keeps_log = {_keeps_log(server) for server in servers} == {True}
        client.close()
    except BROKER_ERRORS as error:
        log.info("not known whether a restart of Redis would lose anything: %s", error)
        return
    for replay, (level, says) in _SAYS.items():
        if replay in found and (keeps_log or replay is not Replay.WHOLE):
            log.log(level, says)
            return


def _keeps_log(server: redis.Redis) -> bool:
    """False: it keeps nothing for a restart. Where this user may not ask, that is not known."""
    try:
        # A refused query would appear in the server's ACL log, among what intruders tried.
        if server.execute_command("ACL DRYRUN", user_of(server), "INFO") not in ("OK", b"OK"):
            return True
        info: Any = server.info()
    except BROKER_ERRORS:
        return True
    eviction = loss_of_eviction(str(info.get("maxmemory_policy", "noeviction")))
    if eviction is not None:
        log.error("%s: %s", eviction.describe(), eviction.remedy)
    if info.get("aof_enabled", 1):
        return True
    log.warning("%s: %s", NO_LOG.describe(), NO_LOG.remedy)
    return False
