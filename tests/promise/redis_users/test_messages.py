"""A user who may not, a password that is wrong, a URL that is none: what a person is told."""

import pytest
import redis
from pydantic import SecretStr

from rose.errors import BrokerUnavailable
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.listeners import Listeners
from tests.support.redis_users import PASSWORDS, filled_users, rules
from tests.support.users_at_work import PARTITION, settings, url

pytestmark = needs_redis_server


@pytest.mark.parametrize(
    ("words", "user", "password", "says"),
    [
        (["submit", "x"], "producer", "wrong-secret-1234", "invalid username-password pair"),
        (["worker", "--engine=null", "--http-port=0"], "worker", "wrong-secret-1234", "invalid"),
        (["stream", "0-x"], "producer", "wrong-secret-1234", "user or password"),
        (["submit", "x"], "scaler", None, "no permissions"),
        (["status"], "scaler", None, "rights of each part"),
        (["dead-letters", "list"], "producer", None, "rights of each part"),
        (["stream", "0-x"], "scaler", None, "no permissions"),
        (["worker", "--engine=null", "--http-port=0"], "producer", None, "rights of each"),
    ],
)
def test_a_user_who_may_not_is_told_in_one_line(
    server: EmbeddedBroker, words: list[str], user: str, password: str | None, says: str
) -> None:
    # when
    reach = url(user, server.port, password)
    ended = run_rose(*words, ROSE_REDIS_URL=reach, ROSE_REDIS_RETRIES="1")
    # then
    assert (ended.returncode, ended.stdout) == (1, "")
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert (password or PASSWORDS[user]) not in ended.stderr


@pytest.mark.parametrize(
    "mistake",
    [
        "redis://u:half#other-half@127.0.0.1:1/0",
        "rediss://u:half@127.0.0.1:1/0?ssl_ca_cert=/misspelt",
        "redis://u:half@127.0.0.1:1/0?ssl_ca_certs=/without-tls",
    ],
)
def test_a_wrong_url_is_one_line_without_the_password(mistake: str) -> None:
    # when
    ended = run_rose("submit", "x", ROSE_REDIS_URL=mistake, ROSE_REDIS_RETRIES="0")
    # then
    assert "ROSE_REDIS_URL" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "half" not in ended.stderr
    assert ended.returncode == 2


@pytest.mark.parametrize(
    "revoke",
    [
        ["DELUSER", "leaver"],
        ["SETUSER", "leaver", "resetchannels"],
        ["SETUSER", "leaver", "clearselectors"],
    ],
)
def test_the_streams_of_a_revoked_user_end_with_an_error(
    server: EmbeddedBroker, admin: redis.Redis, revoke: list[str]
) -> None:
    # given: a user with a producer's rights, who listens
    (user,) = [line for line in filled_users().splitlines() if line.startswith("user producer ")]
    admin.execute_command("ACL", "SETUSER", "leaver", "reset", *rules(user))
    given = settings("producer", server.port).model_copy(
        update={"redis_url": SecretStr(url("leaver", server.port, PASSWORDS["producer"]))}
    )
    with Client(given) as client:
        job = client.submit("x")
        channel = PARTITION.channel(job.id)
        listeners = Listeners(given, job.id)
        wait_until(lambda: admin.pubsub_numsub(channel)[0][1] == 2)
        # when
        admin.execute_command("ACL", *revoke)
        # then
        listeners.join()
        assert [type(error) for error in listeners.errors] == [BrokerUnavailable] * 2
        assert all(PASSWORDS["producer"] not in str(error) for error in listeners.errors)
