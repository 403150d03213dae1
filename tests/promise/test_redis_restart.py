"""A restart of Redis under the shipped users: its AOF brings back all that scripts wrote."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client, Request
from tests.conftest import needs_redis_server
from tests.deploy.files import ROOT
from tests.support.bench import wait_until
from tests.support.echo import SLOW, serving
from tests.support.listeners import Listeners, assert_echo
from tests.support.redis_users import guarded_server
from tests.support.users_at_work import PARTITION, settings, url

#: Redis replays its AOF as this user, and before 8.6 throws away a transaction that this user might
#: not run. A script that writes more than once is one in the AOF.
REPLAYS_ALL = "user default off resetpass ~* &* +@all"


def restart(server: EmbeddedBroker) -> None:
    server.stop()  # SIGKILL
    server.start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with guarded_server(tmp_path) as server:
        yield server


def test_every_shipped_file_of_users_lets_the_default_user_replay_everything() -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    defining = {path: defined for path in files if (defined := default_users(path))}
    assert ROOT / "deploy" / "redis" / "users.acl" in defining
    assert set().union(*defining.values()) == {REPLAYS_ALL}


def default_users(path: Path) -> set[str]:
    if path.suffix == ".pyc":
        return set()
    lines = re.findall(r"^\s*(user \w+ (?:on|off)\b.*)$", path.read_text(), re.MULTILINE)
    return {line for line in lines if line.startswith("user default ")} if lines else set()


@needs_redis_server
def test_what_a_script_wrote_survives_kill_9(server: EmbeddedBroker) -> None:
    # given: one script, two writes
    with redis.Redis.from_url(server.url, protocol=2) as admin:
        admin.eval("redis.call('SET', KEYS[1], 1) redis.call('SET', KEYS[2], 2)", 2, "a", "b")
        # when
        restart(server)
        # then
        assert admin.mget("a", "b") == [b"1", b"2"]


@needs_redis_server
def test_jobs_and_streams_survive_kill_9(server: EmbeddedBroker) -> None:
    given = settings("producer", server.port)
    slow = {"queue": PARTITION.queue, "lease_s": 30, **SLOW}
    with Client(given) as client:
        # given: one ended, one waits behind one in mid-sentence
        with serving("w", url("worker", server.port), max_batch_size=1, **slow):
            ended = client.submit("ab", max_new_tokens=3)
            assert len(ended.result(60).token_ids) == 3
            requests = [Request(text, sampling={"max_new_tokens": 200}) for text in ("cd", "ef")]
            running, waiting = client.submit_many(requests)
            listeners = [Listeners(given, job.id) for job in (running, waiting)]
            wait_until(lambda: listeners[0].have(20))
            # when
            restart(server)
            # then: all as if nothing had been, and nobody is handed out again
            assert ended.status().status == "finished"
            assert_echo(listeners[0].events(), "cd", 200)
            assert_echo(listeners[1].events(), "ef", 200)
            assert {job.status().attempts for job in (running, waiting)} == {1}
        with redis.Redis.from_url(server.url, protocol=2) as admin:
            assert [admin.xlen(stream) for stream in PARTITION.all_jobs] == [0] * 3


@needs_redis_server
@pytest.mark.parametrize(
    ("default", "worker", "says"),
    [
        ((), (), "INFO rose.worker: a restart of Redis replays"),
        (("resetkeys", "-@all"), (), "ERROR rose.worker: a restart of Redis would lose"),
        (("resetkeys",), ("-acl|dryrun",), "WARNING rose.worker: cannot see whether a restart"),
    ],
)
def test_a_worker_says_at_its_start_whether_a_restart_would_lose(
    server: EmbeddedBroker, default: tuple[str, ...], worker: tuple[str, ...], says: str
) -> None:
    # given
    with redis.Redis.from_url(server.url, protocol=2) as admin:
        for user, rules in (("default", default), ("worker", worker)):
            if rules:
                admin.execute_command("ACL", "SETUSER", user, *rules)
    # when
    with serving("w", url("worker", server.port), queue=PARTITION.queue) as started:
        # then
        wait_until(lambda: says in started.log)
