"""What the containers run, run as processes: from the wheel, with the files that are shipped.

Every command comes out of docker-compose.yml and the Dockerfile; only addresses and folders are
this machine's.
"""

import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rose_cli.local.broker import free_port
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.deploy.files import ROOT, image, services
from tests.deploy.prometheus import Prometheus
from tests.support.bench import wait_until
from tests.support.children import begin

pytestmark = needs_redis_server


def test_the_wheel_is_what_runs(programs: Path) -> None:
    words = [programs / "python", "-c", "import rose; print(rose.__file__)"]
    said = subprocess.run(words, capture_output=True, text=True, cwd="/", check=True).stdout
    assert str(programs.parent) in said


@contextmanager
def process(
    words: Sequence[str | Path], env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    started = begin(words, log, env=dict(env), cwd="/")
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def answer(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.read().decode()
    except OSError:
        return None


def test_the_stack_serves_and_is_watched(programs: Path, tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("redis", "worker")}
    paths = {"PATH": f"{programs}:{os.environ['PATH']}"}
    with ExitStack() as stack:
        # given: Redis, as its container starts it
        server = services()["redis"]
        *shell, script = server["command"]
        for inside, here in {
            "/etc/rose": ROOT / "deploy" / "redis",
            "/tmp/users.acl": tmp_path / "users.acl",
            "--dir /data": f"--dir {tmp_path}",
            "0.0.0.0": f"127.0.0.1 --port {ports['redis']}",
        }.items():
            script = script.replace(inside, str(here))
        environment = paths | server["environment"]
        stack.enter_context(process([*shell, script], environment, tmp_path / "redis.log"))
        healthy = server["healthcheck"]["test"][1].replace(
            "redis-cli", f"redis-cli -p {ports['redis']}"
        )
        wait_until(
            lambda: subprocess.run(["/bin/sh", "-c", healthy], env=environment).returncode == 0
        )

        # given: a worker, as its image starts it, on the built-in model
        def local(url: str) -> str:
            return url.replace("redis:6379", f"127.0.0.1:{ports['redis']}")

        own = {
            **paths,
            **{k: v for k, v in image()["env"].items() if k != "PATH"},
            **{k: local(str(v)) for k, v in services()["worker"]["environment"].items()},
            "ROSE_HTTP_HOST": "127.0.0.1",
            "ROSE_HTTP_PORT": str(ports["worker"]),
            "OMP_NUM_THREADS": "1",
            "HOME": str(tmp_path),
            "HF_HOME": str(tmp_path),
            # What other tests have compiled of the same sources is not compiled again.
            "ROSEINFER_NATIVE": os.environ["ROSEINFER_NATIVE"],
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        }
        words = [programs / image()["entrypoint"][0], *image()["entrypoint"][1:], *image()["cmd"]]
        log = tmp_path / "worker.log"
        worker = stack.enter_context(process(words, own, log))
        wait_until(lambda: answer(f"http://127.0.0.1:{ports['worker']}/readyz"), 240)
        assert subprocess.run(image()["health"], env=own).returncode == 0

        # when: the load of its service, and a job of ours, as a producer
        load = services()["load"]
        environment = paths | {"ROSE_REDIS_URL": local(load["environment"]["ROSE_REDIS_URL"])}
        words = [programs / image()["entrypoint"][0], *load["command"]]
        loaded = subprocess.run(
            [*words, "--rate", "5", "--seconds", "3", "--json"],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
        )
        # then: all of them complete
        assert loaded.returncode == 0, loaded.stderr + log.read_text()
        counted = json.loads(loaded.stdout.splitlines()[-1])
        assert counted["submitted"] == counted["finished"] > 0
        with Client(redis_url=environment["ROSE_REDIS_URL"]) as client:
            assert client.submit("Once upon a time", max_new_tokens=5).result(90).token_ids
        # then: it is watched
        if shutil.which("prometheus"):
            prometheus = stack.enter_context(Prometheus(tmp_path, ports["worker"]))
            wait_until(lambda: prometheus.ready)
            wait_until(lambda: prometheus.ask("sum(rose_generated_tokens_total) > 0"))

        # then: it drains
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
        health = subprocess.run(image()["health"], env=own, capture_output=True)
        assert health.returncode != 0
