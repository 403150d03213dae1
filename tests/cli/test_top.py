"""`rose top`: what it shows is what Redis and the workers say."""

import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from rich.console import Console

from rose.errors import ConfigurationError
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_cli.top.frames import Frame, Top, addresses
from rose_cli.top.view import draw, spark
from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.command import run_rose


def test_a_frame_joins_what_redis_and_the_workers_say(
    client: Client, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given: two workers, one of which nobody asks, and more jobs than slots
    first = start_worker(max_batch_size=2, min_step_s=0.01)
    start_worker(max_batch_size=1, min_step_s=0.01)
    for _ in range(5):
        client.submit("ab", max_new_tokens=100_000)
    top = Top(client, [("127.0.0.1", first.http_port)])
    # when
    frame = look_until(top, lambda frame: frame.running == 3 and frame.workers[0].batch == 2)
    look_until(top, lambda frame: frame.tokens_per_s > 0)
    # then
    seen, silent = frame.workers
    assert (seen.name, seen.leases, seen.batch, seen.capacity) == ("w0", 2, 2, 2)
    assert (seen.ready, seen.device) == (True, "cpu")
    assert (silent.name, silent.leases, silent.address) == ("w1", 1, None)
    assert frame.waiting == {"high": 0, "normal": 2, "low": 0}
    assert frame.model == "null"
    assert frame.oldest_running_s is not None
    assert frame.oldest_running_s < 600


def test_hits_misses_and_hand_backs_are_those_of_each_worker(
    client: Client, start_worker: Callable[..., WorkerProcess], raw: redis.Redis, queue: str
) -> None:
    # given: two workers that place jobs, of which the first begins on one
    workers = [start_worker(placement_s=1, hand_backs=1, max_batch_size=1) for _ in range(2)]
    top = Top(client, [("127.0.0.1", worker.http_port) for worker in workers])
    wait_until(lambda: raw.hget(Partition(queue).model, "placement") == b"1")

    def counted(frame: Frame) -> bool:
        client.submit("a" * 3000, max_new_tokens=2).result(90)
        return sum(row.hits for row in frame.workers) > 1

    # when
    frame = look_until(top, counted)
    # then
    for row, worker in zip(frame.workers, workers, strict=True):
        said = worker.metrics()
        assert row.handed_back == said["rose_jobs_handed_back_total"] == 0
        assert row.cached is None  # the null engine has no cache
    hits = sum(row.hits for row in frame.workers)
    console = Console(width=100, file=io.StringIO())
    console.print(draw(frame, 100))
    assert f"{hits} hits" in console.file.getvalue()  # type: ignore[attr-defined]


def look_until(top: Top, condition: Callable[[Frame], bool]) -> Frame:
    """The first frame of which this is true. A worker may be too slow for one, or not there yet."""
    frames: list[Frame] = []

    def looked() -> bool:
        frames.append(top.frame())
        return bool(frames[-1].workers) and condition(frames[-1])

    wait_until(looked)
    return frames[-1]


def test_workers_of_another_queue_are_counted_and_not_shown(
    client: Client, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    # given: two workers at this host, both idle
    ours = start_worker()
    theirs = start_worker(queue=f"{queue}-other")
    top = Top(client, [("127.0.0.1", worker.http_port) for worker in (ours, theirs)])
    # when
    frame = look_until(top, lambda frame: frame.other_workers == 1 and frame.workers[0].ready)
    # then
    assert [row.name for row in frame.workers] == [ours.name]
    assert frame.workers[0].leases == 0
    assert frame.other_workers == 1


def test_the_command_prints_frames_json_and_a_picture(
    broker: EmbeddedBroker, queue: str, client: Client, tmp_path: Path
) -> None:
    # given: no worker at all
    client.submit("x", priority="high")
    place = {"ROSE_REDIS_URL": broker.url, "ROSE_QUEUE": queue}

    def top(*words: str) -> str:
        ended = run_rose("top", "--interval", "0.05", *words, **place)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    # when
    shown = top("--once", "--metrics", "127.0.0.1:1", "--svg", str(tmp_path / "top.svg"))
    lines = top("--frames", "2", "--json", "--metrics", "127.0.0.1:1").splitlines()
    # then
    assert "high 1" in shown
    assert "this queue has no worker" in shown
    assert [json.loads(line)["waiting"]["high"] for line in lines] == [1, 1]
    drawn = (tmp_path / "top.svg").read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "this&#160;queue&#160;has&#160;no&#160;worker" in drawn
    assert "url(https" not in drawn.replace('"', "")


def test_places_are_hosts_with_or_without_a_port() -> None:
    assert addresses(["127.0.0.1", "http://127.0.0.1:9400/metrics"]) == [("127.0.0.1", 9400)]
    assert addresses(["[::1]:9401", "[::1]"]) == [("::1", 9401), ("::1", 9400)]
    for wrong in ("", "127.0.0.1:x", "no.such.host.invalid"):
        with pytest.raises(ConfigurationError, match="--metrics"):
            addresses([wrong])


def test_a_sparkline_has_its_highest_full() -> None:
    assert spark([0, 1, 2, 4]) == "▁▃▅█"
    assert spark([0, 0]) == "▁▁"
