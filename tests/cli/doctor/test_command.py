"""`rose doctor`, the command: a line for each check, and its exit code."""

import json

import redis

from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.support.command import run_rose
from tests.support.redis_users import PASSWORDS

pytestmark = needs_redis_server


def test_the_command_tells_a_line_each_and_fails_when_one_does(
    shipped: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given: the null engine, so there is nothing of this machine to look at
    place = {"ROSE_ENGINE": "null", "ROSE_REDIS_URL": shipped.url}
    well = run_rose("doctor", "--json", **place)
    admin.config_set("maxmemory-policy", "volatile-ttl")
    try:
        # when
        ill = run_rose("doctor", **place)
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
    # then
    assert well.returncode == 0, well.stdout
    assert [json.loads(x)["verdict"] for x in well.stdout.splitlines()] == ["ok"] * 9
    assert ill.returncode == 1
    (line,) = [x for x in ill.stdout.splitlines() if x.startswith("fail")]
    assert "volatile-ttl" in line
    assert "CONFIG SET maxmemory-policy noeviction" in line
    assert not any(secret in well.stdout + ill.stdout for secret in PASSWORDS.values())


def test_the_command_for_a_gateways_user(shipped: EmbeddedBroker) -> None:
    url = f"redis://gateway:{PASSWORDS['gateway']}@127.0.0.1:{shipped.port}/0"
    # when
    told = run_rose("doctor", "--role", "gateway", ROSE_REDIS_URL=url).stdout
    # then
    assert "user gateway has the rights of a producer and gateway" in told
    assert "rose keys create NAME" in told
    assert "device" not in told
