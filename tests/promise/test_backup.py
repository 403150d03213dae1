"""docs/backup.md: its commands, run while a job runs. Restored, it goes on to the same text."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import redis

from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.deploy.files import ROOT
from tests.support.bench import wait_until
from tests.support.echo import SLOW, serving
from tests.support.listeners import Listeners, assert_echo
from tests.support.redis_users import PASSWORDS, guarded_server
from tests.support.users_at_work import PARTITION, settings, url

pytestmark = needs_redis_server

PAGE = (ROOT / "docs" / "backup.md").read_text()
_DEFINITION, _BY_RDB, _BY_FILES, _RESTORE_RDB, *_ = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
_RESTORE_FILES = re.findall(r"`(cp -a /backup/.*?)`", PAGE)[0]

#: So many take a worker of the pace of `SLOW` minutes: the job runs while the backup is made.
TOKENS = 10_000
#: How a backup is made, and how it comes back.
WAYS = {"one file": (_BY_RDB, _RESTORE_RDB), "files": (_BY_FILES, _RESTORE_FILES)}


def run(commands: str, folder: Path, data: str, port: int) -> None:
    """The page's commands, in this folder, with the server's own place and port."""
    places = {"/var/lib/redis": data, "/backup": str(folder / "backup"), "-R redis:": "-R $(id -u)"}
    for page, here in places.items():
        commands = commands.replace(page, here)
    script = _DEFINITION.replace("--user admin", f"-p {port} --user admin") + commands
    environment = os.environ | {"REDISCLI_AUTH": PASSWORDS["admin"]}
    words = ["/bin/sh", "-ec", script]
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def folder_of(server: EmbeddedBroker) -> str:
    with redis.Redis.from_url(server.url) as admin:
        return str(admin.config_get("dir")["dir"])


@pytest.mark.parametrize("way", WAYS)
def test_a_job_goes_on_from_its_backup(way: str, tmp_path: Path) -> None:
    back_up, restore = WAYS[way]
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new, tmp_path / "backup"):
        folder.mkdir()
    queue = PARTITION.queue
    # given: a job in mid-sentence, and one that waits
    with (
        guarded_server(old) as server,
        Client(settings("producer", server.port)) as client,
        serving("w", url("worker", server.port), queue=queue, max_batch_size=1, **SLOW),
    ):
        running = client.submit("cd", max_new_tokens=TOKENS)
        waiting = client.submit("ef", max_new_tokens=20)
        wait_until(lambda: running.status().tokens >= 20)
        # when
        run(back_up, tmp_path, folder_of(server), server.port)
        running.cancel()
    # then: another server, which has never heard of them
    with guarded_server(new) as server:
        data = folder_of(server)
        server.stop()
        aside = Path(data, "appendonlydir")
        aside.rename(tmp_path / "aside")
        run(restore, tmp_path, data, server.port)
        server.start()
        given = settings("producer", server.port)
        with Client(given) as client:
            assert 20 <= client.job(running.id).status().tokens < TOKENS
            with serving("w", url("worker", server.port), queue=queue):
                assert_echo(Listeners(given, running.id).events(), "cd", TOKENS)
                assert_echo(Listeners(given, waiting.id).events(), "ef", 20)
