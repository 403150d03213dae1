"""`rose doctor` as users of Redis who have their rights, and who lack one."""

import pytest
import redis

from rose.protocol import Partition
from rose_cli.doctor.findings import Verdict
from rose_cli.doctor.rights import RIGHTS, Role
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.doctor import examined, settings_of, wrong
from tests.support.keys import one_of_a_kind
from tests.support.redis_users import PASSWORDS, allowed, filled_users, rules

pytestmark = needs_redis_server

#: Rights that doctor does not try: what any client of a cluster sends, what gives up,
#: and what a worker can do without.
UNTRIED = {
    "command",
    "cluster|slots",
    "cluster|shards",
    "unsubscribe",
    "sunsubscribe",
    "acl|dryrun",
    "sadd",  # there is no form of it that changes nothing
}

#: Of a key that is there, or for where somebody has put one of another type.
UNTRIED_THERE = {
    *(("del", kind) for kind in ("shares", "load", "model", "workers", "dead", "running")),
    ("zunionstore", "shares"),
    ("zrange", "running"),
    *(("rename", "placement"), ("unlink", "placement"), ("del", "placement")),
}


@pytest.mark.parametrize("role", Role)
def test_the_shipped_users_have_their_rights_and_may_not_ask_for_settings(
    shipped: EmbeddedBroker, admin: redis.Redis, role: Role
) -> None:
    found = examined(settings_of(shipped, role.value), role)
    assert wrong(found) == {"settings": Verdict.WARN}
    assert found["redis"].says.startswith("version ")
    assert "administrator" in found["settings"].todo
    assert {"write", "clock"} <= set(found)
    assert admin.dbsize() == 0


@pytest.mark.parametrize(
    ("role", "right", "named"),
    [
        ("worker", "+xclaim", "XCLAIM on rose:{default:0}:jobs:*"),
        ("worker", "+script|load", "SCRIPT LOAD"),
        ("producer", "+publish", "PUBLISH on rose:{default:0}:channel:*"),
        ("producer", "+subscribe", "SUBSCRIBE on rose:{default:0}:channel:*"),
    ],
)
def test_a_user_with_a_right_too_few(
    shipped: EmbeddedBroker, admin: redis.Redis, role: str, right: str, named: str
) -> None:
    # given: the role's user, without one of its rights
    (line,) = [x for x in filled_users().splitlines() if x.startswith(f"user {role} ")]
    admin.execute_command("ACL", "SETUSER", role, "reset", *rules(line.replace(f" {right}", "")))
    try:
        # when
        found = examined(settings_of(shipped, role))
    finally:
        admin.execute_command("ACL", "SETUSER", role, "reset", *rules(line))
    # then
    assert found["rights"].verdict is Verdict.FAIL
    assert f"lacks rights of a {role}: {named}" in found["rights"].says


@pytest.mark.parametrize(
    ("right", "named"),
    [
        ("xack", "worker: XACK on rose:{default:0}:jobs:*"),
        ("xreadgroup", "worker: XREADGROUP on rose:{default:0}:jobs:*"),
        ("hlen", "gateway: HLEN on rose:gateway:keys"),
    ],
)
def test_a_user_who_is_nearly_all_may_be_no_producer_by_chance(
    shipped: EmbeddedBroker, admin: redis.Redis, right: str, named: str
) -> None:
    # given: what a producer needs, it has
    given = settings_of(shipped, "broad")
    admin.execute_command(
        *("ACL", "SETUSER", "broad", "reset", "on", f">{PASSWORDS['broad']}"),
        *("~*", "&*", "+@all", f"-{right}"),
    )
    # when
    found = examined(given)["rights"]
    # then
    assert found.verdict is Verdict.FAIL
    assert f"user broad lacks rights of a {named}" in found.says
    assert found.todo.endswith("--role producer")
    assert examined(given, Role.PRODUCER)["rights"].verdict is Verdict.OK


def test_a_worker_is_no_producer(shipped: EmbeddedBroker) -> None:
    found = examined(settings_of(shipped, "worker"), Role.PRODUCER)
    assert found["rights"].verdict is Verdict.FAIL
    assert "SET on rose:{default:0}:idempotency:*" in found["rights"].says


def test_a_user_without_scripts_is_told_once(shipped: EmbeddedBroker, admin: redis.Redis) -> None:
    # given
    password = PASSWORDS["producer"]
    narrow = [*("reset", "on", f">{password}", "~rose:*", "&rose:*"), "+@connection", "+@read"]
    url = f"redis://narrow:{password}@127.0.0.1:{shipped.port}/0"
    admin.execute_command("ACL", "SETUSER", "narrow", *narrow)
    # when
    found = examined(ProducerSettings(redis_url=url, redis_retries=0))
    # then
    assert wrong(found) == {"settings": Verdict.WARN, "rights": Verdict.FAIL}


@pytest.mark.parametrize("role", Role)
def test_the_rights_that_are_tried_are_those_of_the_shipped_user(role: Role) -> None:
    tried = {(name, kind) for kind, names in RIGHTS[role].items() for name in names}
    # The file gives scripts every kind of key, and names channels beside the commands.
    tried = {(n, "*" if n.startswith("eval") else k) for n, k in tried}
    tried = {(n, "" if n in ("publish", "subscribe") else k) for n, k in tried}
    tried = {(n, k.partition(":")[0]) for n, k in tried}  # one key of a kind
    given = {(n, k) for n, k in allowed()[role.value] if n not in UNTRIED}
    given = {(n, "*" if n.startswith("eval") else k) for n, k in given}
    given -= UNTRIED_THERE
    sharded = {(n, k) for n, k in given if n in ("spublish", "ssubscribe")}
    assert tried == given - sharded


@pytest.mark.parametrize("role", Role)
def test_what_is_tried_changes_nothing(
    shipped: EmbeddedBroker, admin: redis.Redis, role: Role
) -> None:
    # given: keys that all jobs of the queue share
    keys = one_of_a_kind(Partition("default"))
    for key in keys:
        admin.set(key, "there")
    try:
        # when
        examined(settings_of(shipped, role.value), role)
        # then
        assert admin.mget(keys) == [b"there"] * len(keys)
    finally:
        admin.flushall()
