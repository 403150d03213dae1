"""`rose demo` as a user runs it: its own verdict, on each broker, on a terminal and without one."""

import asyncio
import gc
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from rose.errors import BrokerUnavailable
from rose_cli.demo.prompts import REQUESTS
from rose_cli.demo.run import kill_at_work
from rose_cli.demo.state import StreamRecord
from rose_cli.local.broker import (
    REDIS_SERVER,
    EmbeddedBroker,
    find_redis_server,
    free_port,
    version_of,
)
from rose_cli.local.services import ServiceProcess, WorkerProcess
from rose_producer import AsyncClient, FinishedEvent, Result, TokenEvent
from tests.conftest import needs_redis_server

ROSE = [sys.executable, "-m", "rose_cli"]


def test_the_demo_kills_a_worker_and_every_stream_is_whole() -> None:
    # when
    ended = subprocess.run([*ROSE, "demo", "--json"], capture_output=True, text=True, timeout=280)
    # then
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["ok"]
    assert report["killed"] in ("worker-a", "worker-b")
    streams = report["streams"]
    assert len(streams) == len(REQUESTS) >= 12
    assert all(s["missing"] == s["doubled"] == 0 for s in streams)
    assert all(s["same_as_undisturbed"] for s in streams)
    assert report["gateway"].startswith("http://127.0.0.1:")
    assert all(s["same_over_http"] for s in streams)
    moved = [s for s in streams if s["moved_at"] is not None]
    assert moved
    assert all(len(s["workers"]) == 2 for s in moved)


def test_on_a_terminal_it_draws_the_streams_and_on_a_stand_in_for_redis_they_are_whole() -> None:
    # given
    master, slave = pty.openpty()
    # when
    words = [*ROSE, "demo", "--fake-redis"]
    process = subprocess.Popen(words, stdout=slave, stderr=slave, stdin=slave)
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:  # the terminal closes with its last process
        pass
    # then
    assert process.wait() == 0, shown.decode()
    assert "█".encode() in shown
    assert b"no token missing, none doubled" in shown


def test_a_worker_whose_jobs_ended_before_their_subscribers_saw_it_is_not_killed() -> None:
    # given: a subscriber that has seen the first word of a job that has ended
    async def watch(redis_url: str, worker: WorkerProcess) -> list[StreamRecord]:
        async with AsyncClient(redis_url=redis_url) as client:
            job = await client.submit("Once", max_new_tokens=4)
            result = await job.result(60)
            assert len(result.token_ids) == 4
            late = StreamRecord(1, "late")
            late.add(TokenEvent(index=0, token_ids=(1,), text=" upon"))
            late.seen_on(worker.name)
            # when
            return await kill_at_work(worker, [(job, late)])

    with EmbeddedBroker() as broker, WorkerProcess("one", broker.url) as worker:
        worker.wait_ready()
        # then
        assert asyncio.run(watch(broker.url, worker)) == []
        assert worker.is_ready()


@needs_redis_server
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_demo_that_is_ended_leaves_no_process_behind(signum: signal.Signals) -> None:
    # given
    process = subprocess.Popen([*ROSE, "demo"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    server = Path(find_redis_server() or "").name
    assert process.stdout.readline().startswith(f"broker: {server};".encode())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    # when
    process.send_signal(signum)
    # then
    assert process.wait(60) in (128 + signum, 130)
    assert len(children) == 4  # the server, two workers, the gateway
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    process.stdout.close()


def test_no_signal_is_lost_in_the_finalizer_of_what_started_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    gc.collect()
    finalized = []
    monkeypatch.setattr(redis.ConnectionPool, "__del__", lambda pool: finalized.append(id(pool)))
    # when
    with EmbeddedBroker(fake=True):
        gc.collect()
        # then
        assert finalized == []


def test_a_demo_that_sees_a_wrong_stream_says_so() -> None:
    # given
    def record(*indexes: int) -> StreamRecord:
        seen = StreamRecord(1, "x")
        for index in indexes:
            seen.add(TokenEvent(index=index, token_ids=(index,), text="a"))
        seen.add(FinishedEvent(index=3, reason="eos", prompt_tokens=1))
        return seen

    right = Result("j", "aaa", (0, 1, 2), "eos", 1)
    # then
    assert record(0, 1, 2).is_right(right)
    assert not record(0, 2).is_right(right)
    assert record(0, 2).missing == 1
    assert not record(0, 1, 1, 2).is_right(right)
    assert record(0, 1, 1, 2).doubled == 1
    assert not record(1, 0, 2).is_right(right)
    assert not record(0, 1, 2).is_right(Result("j", "aab", (0, 1, 2), "eos", 1))


def test_without_a_redis_server_a_real_one_is_refused_and_a_fake_one_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given
    monkeypatch.delenv(REDIS_SERVER, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    # then
    with pytest.raises(BrokerUnavailable, match="install"):
        EmbeddedBroker(fake=False)
    with EmbeddedBroker() as broker:
        assert broker.kind == "fakeredis"


@needs_redis_server
def test_a_redis_server_that_is_too_old_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # given: an old one, first on PATH
    old = program(tmp_path / "old" / "redis-server", "echo 'Redis server v=6.2.14 sha=0:0'")
    real = program(tmp_path / "new" / "redis-server", f'exec {find_redis_server()} "$@"')
    monkeypatch.delenv(REDIS_SERVER, raising=False)
    monkeypatch.setenv("PATH", f"{old.parent}{os.pathsep}{real.parent}")
    # then
    assert find_redis_server() == str(real)
    assert f"passing over {old}: version 6.2.14 is too old" in caplog.text
    with EmbeddedBroker(fake=False) as broker:
        assert broker.kind == "redis-server"
    monkeypatch.setenv("PATH", str(old.parent))
    with pytest.raises(BrokerUnavailable, match=r"7\.0 or newer"):
        EmbeddedBroker(fake=False)


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # given: three good ones
    redis_ = program(tmp_path / "redis" / "redis-server", "echo 'Redis server v=8.0.2 sha=0:0'")
    valkey = program(tmp_path / "valkey" / "valkey-server", "echo 'Valkey server v=8.1.1 sha=0:0'")
    named = program(tmp_path / "mine", "echo 'Redis server v=7.4.1 sha=0:0'")
    monkeypatch.setenv("PATH", f"{valkey.parent}{os.pathsep}{redis_.parent}")
    # then: what is named comes first, then Redis, then Valkey
    monkeypatch.setenv(REDIS_SERVER, str(named))
    assert find_redis_server() == str(named)
    assert version_of(str(named)) == "7.4.1"
    monkeypatch.delenv(REDIS_SERVER)
    assert find_redis_server() == str(redis_)
    redis_.unlink()
    assert find_redis_server() == str(valkey)
    assert version_of(str(valkey)) == "8.1.1 (Valkey)"
    # and: a name that leads nowhere is no reason to take another
    monkeypatch.setenv(REDIS_SERVER, str(redis_))
    with pytest.raises(BrokerUnavailable, match="no program"):
        find_redis_server()


def program(path: Path, does: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return path


def test_a_demo_that_is_kept_up_prints_plain_lines_and_answers_the_curl_line_among_them() -> None:
    # given: no terminal
    words = [*ROSE, "demo", "--full-speed", "--keep"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as demo:
        assert demo.stdout is not None
        watchdog = threading.Timer(800, demo.kill)  # leaving the context waits for its end
        watchdog.start()
        lines = []
        for line in demo.stdout:
            lines.append(line)
            if "curl -N http://127.0.0.1:" in line:
                break
        lines.append(next(demo.stdout))
        curl, request = lines[-2:]
        command = curl.rstrip("\\\n") + request
        # when
        asked = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=120
        )
        demo.send_signal(signal.SIGINT)
        watchdog.cancel()
        # then
        assert "response.completed" in asked.stdout, asked.stderr
        assert demo.wait(60) == 0
    printed = "".join(lines)
    assert "\x1b" not in printed
    assert "compared with an undisturbed run" in printed
    assert max(len(curl), len(request)) <= 80  # with the end of the line


def test_whoever_waits_for_a_service_hears_what_it_does_until_it_is_ready(tmp_path: Path) -> None:
    # given: a service that logs what it does, and serves when it is asked to
    port, go = free_port(), tmp_path / "readyz"
    server = tmp_path / "slow_service.py"
    server.write_text(
        "import http.server, os, pathlib, time\n"
        f"go = pathlib.Path({str(go)!r})\n"
        "os.chdir(go.parent)\n"
        "print('INFO loader: compiling the decoder', flush=True)\n"
        "while not go.exists():\n"
        "    time.sleep(0.01)\n"
        "handler = http.server.SimpleHTTPRequestHandler\n"
        f"http.server.HTTPServer(('127.0.0.1', {port}), handler).serve_forever()\n"
    )
    heard = list[str]()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def hear(line: str) -> None:
        heard.append(line)
        go.touch()

    with ServiceProcess("one", port, ["slow_service"], {}, environment) as service:
        # when
        service.wait_ready(hear)
    # then
    assert heard[0] == "  one: compiling the decoder"


def test_a_proxy_in_the_environment_is_not_asked_for_a_service_on_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: a proxy that nobody runs
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (tmp_path / "readyz").write_text("ready")
    port = free_port()
    program = ["http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with ServiceProcess("one", port, program, {}) as service:
        # when
        service.wait_ready()
        # then
        assert service.http("/readyz") == "ready"
        assert service.http("/nowhere") is None
