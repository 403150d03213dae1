"""Each script may be repeated, since the reply to the first call may be lost."""

from typing import Any

import pytest

from rose.protocol import calls
from tests.conftest import needs_redis_server
from tests.support.bench import Bench
from tests.support.script_calls import PREPARED

pytestmark = needs_redis_server

#: Whose caller goes by the reply, so that a repeat must answer what the first call did.
SAY_THE_SAME = {"elect", "oldest_waiting", "renew", "retry", "retry_of_a_tenant", "take"}


def contents(bench: Bench) -> dict[bytes, object]:
    """All that the keys of the queue hold, but for when entries were handed out or looked at."""
    found: dict[bytes, object] = {}
    keys = bench.redis.scan_iter(f"rose:{{{bench.partition.queue}:0}}:*")
    for key in set(keys) - {bench.partition.reclaim.encode()}:
        if bench.redis.type(key) != b"stream":
            found[key] = bench.redis.dump(key)
            continue
        groups: list[dict[str, Any]] = bench.redis.xinfo_groups(key)
        owners = [
            [(entry["message_id"], entry["consumer"]) for entry in held]
            for group in groups
            for held in [bench.redis.xpending_range(key, group["name"], "-", "+", 100)]
        ]
        found[key] = (bench.redis.xrange(key), [g["last-delivered-id"] for g in groups], owners)
    return found


@pytest.mark.parametrize("name", PREPARED)
def test_a_repeat_changes_and_says_nothing(bench: Bench, name: str) -> None:
    # given
    call = PREPARED[name](bench)
    reply = bench.call(call)
    after = contents(bench)
    # when
    with bench.listening() as channels:
        repeated = bench.call(call)
        # then
        assert contents(bench) == after
        assert channels.get_message(timeout=0.05) is None
    if name == "take":  # in terms of what it grants: it tells Redis' time, too
        reply, repeated = ([calls.taken(item, "") for item in each] for each in (reply, repeated))
    if name in SAY_THE_SAME:
        assert repeated == reply
