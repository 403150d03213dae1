"""The operators' pages, by their own commands for Docker Compose, under streams in mid-sentence."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rose.errors import JobNotFound
from rose_producer import Client
from tests.compose.docker import Docker
from tests.compose.images import OURS
from tests.compose.stack import Stack
from tests.compose.streams import Streams
from tests.deploy.files import ROOT
from tests.support.bench import wait_until

Answers = list[tuple[int, ...]]


def commands(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "docker compose" in block or "docker stop" in block]


def replace_workers(stack: Stack, folder: Path) -> Streams:
    """Returns streams that were in mid-sentence on old and new ones."""
    before = stack.ids("worker")
    start, stop = commands("upgrade.md")
    stack.run(start, folder)
    wait_until(lambda: all(stack.worker_says(one, "/readyz") for one in stack.ids("worker")), 300)
    assert len(stack.ids("worker")) == 4
    streams = Streams(stack.settings)
    stack.run(stop, folder)
    assert len(stack.ids("worker")) == 2
    assert not set(before) & set(stack.ids("worker"))
    return streams


def test_a_restored_backup_answers_what_had_ended_and_goes_on_with_the_rest(
    stack: Stack, undisturbed: Answers, tmp_path: Path
) -> None:
    back_up, restore = commands("backup.md")
    with Client(stack.settings) as client:
        # given
        ended = client.submit("Once upon a time", max_new_tokens=5)
        text = ended.result(120).text
        streams = Streams(stack.settings)
        workers = stack.ids("worker")
        stack.do("pause", *workers)
        # when
        stack.run(back_up, tmp_path)
        assert streams.in_mid_sentence
        stack.do("unpause", *workers)
        stack.do("kill", *workers)
        later = client.submit("The little dog", max_new_tokens=5)
        stack.run(restore, tmp_path)
        # then
        assert streams.answers() == undisturbed
        assert client.job(ended.id).result(10).text == text
        with pytest.raises(JobNotFound):
            client.job(later.id).status()


def test_a_password_is_changed_under_streams(
    stack: Stack, undisturbed: Answers, tmp_path: Path
) -> None:
    begin, end = commands("rotation.md")
    old = stack.env["WORKER_PASSWORD"]
    streams = Streams(stack.settings)
    # when
    stack.run(begin, tmp_path)
    more = replace_workers(stack, tmp_path)
    stack.run(end, tmp_path)
    # then
    assert streams.answers() == more.answers() == undisturbed
    (redis,) = stack.ids("redis")
    wait_until(lambda: stack.health(redis) == "healthy", 60)
    words = ("exec", redis, "redis-cli", "--user", "worker", "--pass")
    assert "WRONGPASS" in stack.do(*words, old, "ping")
    assert "PONG" in stack.do(*words, stack.env["WORKER_PASSWORD"], "ping")


@pytest.fixture
def next_release(docker: Docker, tmp_path: Path) -> Iterator[str]:
    """The id of an image, which is that of the workers from now on."""
    before = docker("inspect", "--format", "{{.Id}}", OURS)
    (tmp_path / "Dockerfile").write_text(f"FROM {OURS}\nLABEL release=next\n")
    docker("build", "--tag", OURS, tmp_path)
    yield docker("inspect", "--format", "{{.Id}}", OURS)
    docker("tag", before, OURS)


def test_workers_are_upgraded_under_streams(
    stack: Stack, undisturbed: Answers, next_release: str, tmp_path: Path
) -> None:
    # when
    streams = replace_workers(stack, tmp_path)
    # then
    assert {stack.inspect(one)["Image"] for one in stack.ids("worker")} == {next_release}
    assert streams.answers() == undisturbed
    assert set(streams.attempts()) == {1}
