"""What the containers run, run as processes: from the wheel, with the files that are shipped.

Every command comes out of docker-compose.yml and the Dockerfile; only addresses and folders are
this machine's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rose_cli.demo.broker import free_port
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.deploy.files import ROOT, image, services
from tests.support.bench import wait_until
from tests.support.wheel import install, new_environment

pytestmark = needs_redis_server


@pytest.fixture(scope="module")
def rose(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment into which the wheel was installed."""
    environment = tmp_path_factory.mktemp("image") / "venv"
    new_environment(environment)
    install(wheel, environment)
    return environment / "bin"


def test_the_wheel_is_what_runs(rose: Path) -> None:
    asked = "import rose, sys; print(rose.__file__)"
    words = [rose / "python", "-c", asked]
    said = subprocess.run(words, capture_output=True, text=True, cwd="/", check=True).stdout
    assert str(rose.parent) in said


@contextmanager
def process(
    words: Sequence[str | Path], env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        started = subprocess.Popen(words, env=dict(env), cwd="/", stdout=output, stderr=output)
        try:
            yield started
        finally:
            started.kill()
            started.wait()


def answer(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.read().decode()
    except OSError:
        return None


def test_the_stack_serves_and_is_watched(rose: Path, tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("redis", "worker", "prometheus")}
    paths = {"PATH": f"{rose}:{os.environ['PATH']}"}
    with ExitStack() as stack:
        # given: Redis, as its container starts it
        server = services()["redis"]
        *shell, script = server["command"]
        for inside, here in {
            "/etc/rose": ROOT / "deploy" / "redis",
            "/run/rose": tmp_path,
            "/data": tmp_path,
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

        environment = {
            **paths,
            **{k: v for k, v in image()["env"].items() if k != "PATH"},
            **{k: local(str(v)) for k, v in services()["worker"]["environment"].items()},
            "ROSE_HTTP_HOST": "127.0.0.1",
            "ROSE_HTTP_PORT": str(ports["worker"]),
            "OMP_NUM_THREADS": "1",
            "HOME": str(tmp_path),
            "HF_HOME": str(tmp_path),
        }
        words = [rose / image()["entrypoint"][0], *image()["entrypoint"][1:], *image()["cmd"]]
        log = tmp_path / "worker.log"
        worker = stack.enter_context(process(words, environment, log))
        wait_until(lambda: answer(f"http://127.0.0.1:{ports['worker']}/readyz"), 60)
        assert subprocess.run(image()["health"], env=environment).returncode == 0

        # when: the load of its service, and a job of ours, as a producer
        load = services()["load"]
        environment = paths | {"ROSE_REDIS_URL": local(load["environment"]["ROSE_REDIS_URL"])}
        running = watched(stack, tmp_path, ports) if shutil.which("prometheus") else None
        words = [rose / image()["entrypoint"][0], *load["command"]]
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
            if running is not None:
                assert_dashboards_answer(running, client)

        # then: it drains
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        subprocess_health = subprocess.run(image()["health"], env=paths, capture_output=True)
        assert subprocess_health.returncode != 0


def watched(stack: ExitStack, folder: Path, ports: Mapping[str, int]) -> str:
    """Prometheus with the shipped configuration, in fast motion; returns where it answers."""
    config = folder / "prometheus"
    shutil.copytree(ROOT / "deploy" / "prometheus", config)
    given = (config / "prometheus.yml").read_text()
    (config / "prometheus.yml").write_text(re.sub(r"\b[45]s\b", "500ms", given))
    (config / "targets" / "workers.yml").write_text(f"- targets: ['127.0.0.1:{ports['worker']}']\n")
    words = [
        word.replace("/etc/prometheus", str(config)).replace("=/prometheus", f"={folder / 'tsdb'}")
        for word in services()["prometheus"]["command"]
    ]
    at = f"127.0.0.1:{ports['prometheus']}"
    words += [f"--web.listen-address={at}"]
    stack.enter_context(process(["prometheus", *words], os.environ, folder / "prometheus.log"))
    wait_until(lambda: answer(f"http://{at}/-/ready"), 30)
    return at


def assert_dashboards_answer(prometheus: str, client: Client) -> None:
    """Every query of the overview is one, and the rate of tokens is seen while jobs are done."""
    dashboard = (ROOT / "deploy" / "grafana" / "dashboards" / "overview.json").read_text()
    queries = _expressions(json.loads(dashboard))
    assert len(queries) > 5
    for query in queries:
        ask(prometheus, query)
    (rate,) = [query for query in queries if query.startswith("sum(rate(rose_generated_tokens")]
    deadline = time.monotonic() + 60
    while not any(float(sample["value"][1]) > 0 for sample in ask(prometheus, rate)):
        assert time.monotonic() < deadline, "no rate of tokens"
        client.submit("Once upon a time", max_new_tokens=5).result(90)


def _expressions(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["expr"]] if isinstance(node.get("expr"), str) else []
        return own + [query for value in node.values() for query in _expressions(value)]
    if isinstance(node, list):
        return [query for value in node for query in _expressions(value)]
    return []


def ask(prometheus: str, query: str) -> list[dict[str, list[str]]]:
    """As Grafana asks, its variables filled in: every model, and a short while."""
    query = re.sub(r"\$(__rate_interval|__range|__interval)", "20s", query)
    query = re.sub(r"\$\w+|\$\{\w+\}", ".*", query)
    url = f"http://{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    reply = answer(url)
    assert reply is not None, query
    found: list[dict[str, list[str]]] = json.loads(reply)["data"]["result"]
    return found
