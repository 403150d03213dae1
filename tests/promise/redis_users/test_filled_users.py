"""The shipped users.acl and redis.conf: filled in with passwords, and never without."""

import subprocess
from pathlib import Path

import pytest
import redis

from rose.errors import BrokerUnavailable
from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.support.redis_users import DEPLOY, PASSWORDS, filled_users

pytestmark = needs_redis_server


def test_the_template_is_no_acl_file() -> None:
    """Nobody can forget to fill it in."""
    options = {"aclfile": str(DEPLOY / "users.acl")}
    server = EmbeddedBroker(fake=False, config=DEPLOY / "redis.conf", options=options)
    with pytest.raises(BrokerUnavailable, match=r"users\.acl"), server:
        pytest.fail("Redis has started")


def test_short_passwords_are_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        filled_users(PASSWORDS | {"scaler": "short"})
    assert "SCALER_PASSWORD" in refused.value.stderr
    assert "short" not in refused.value.stderr
    assert refused.value.stdout == ""


def test_there_is_an_administrator_where_there_is_a_password_for_one() -> None:
    without = filled_users(PASSWORDS | {"admin": ""})
    assert set(filled_users().splitlines()) - set(without.splitlines()) == {
        line for line in filled_users().splitlines() if line.startswith("user admin ")
    }
    assert "user admin " not in without


def test_passwords_come_from_files_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORDS["worker"] + "\n")
    from_file = filled_users({**PASSWORDS, "worker": ""}, WORKER_PASSWORD_FILE=str(secret))
    assert from_file == filled_users()


def test_while_a_password_is_changed_both_let_the_user_in(tmp_path: Path) -> None:
    # given
    users = tmp_path / "users.acl"
    users.write_text(filled_users())
    new = PASSWORDS | {"worker": "another-worker-secret"}
    with EmbeddedBroker(
        fake=False,
        config=DEPLOY / "redis.conf",
        options={"aclfile": str(users)},
        url=f"redis://admin:{PASSWORDS['admin']}@127.0.0.1:{{port}}/0",
    ) as server:

        def enter(password: str) -> bool:
            url = server.url.replace(f"admin:{PASSWORDS['admin']}", f"worker:{password}")
            with redis.Redis.from_url(url) as worker:
                try:
                    return bool(worker.ping())
                except redis.AuthenticationError:
                    return False

        def load(text: str) -> list[bool]:
            users.write_text(text)
            with redis.Redis.from_url(server.url) as administrator:
                administrator.acl_load()
            return [enter(PASSWORDS["worker"]), enter(new["worker"])]

        # when, then
        assert load(filled_users(new, WORKER_PASSWORD_OLD=PASSWORDS["worker"])) == [True, True]
        assert load(filled_users(new)) == [False, True]


def test_the_shipped_configuration_keeps_every_promise(admin: redis.Redis) -> None:
    """Those that `rose doctor` does not look at; tests/cli/doctor/test_rights.py has the others."""
    assert admin.config_get("protected-mode")["protected-mode"] == "yes"
    assert admin.config_get("save")["save"] == ""
