"""docker-compose.yml, brought up for real, and what is done to its containers."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rose_cli.local.broker import free_port
from rose_producer import ProducerSettings
from tests.compose.docker import Docker
from tests.compose.images import OURS
from tests.deploy.files import ROOT, services
from tests.support.bench import wait_until

WORKERS = 2
#: A model must load, perhaps on a busy machine.
_WELL_S = 300

_SLOW = ROOT / "tests" / "compose" / "slow.yml"
#: Services without an image at hand where no registry answers are left out: Grafana.
_SERVICES = ("redis", "worker", "gateway", "prometheus")


class Stack:
    """Redis, two workers, a gateway, Prometheus; ports of this machine, the rest as shipped."""

    def __init__(self, docker: Docker) -> None:
        self._docker = docker
        self._project = f"rose-test-{os.getpid()}"
        names = ("REDIS_PORT", "GATEWAY_PORT", "PROMETHEUS_PORT")
        #: As `.env` would say, and which files.
        self.env = {name: str(free_port()) for name in names} | {
            "ADMIN_PASSWORD": "administrator-of-tests",
            "WORKER_PASSWORD": "first-worker-of-tests",
            "COMPOSE_PROJECT_NAME": self._project,
            "COMPOSE_FILE": f"{ROOT / 'docker-compose.yml'}:{_SLOW}",
        }
        password = services()["redis"]["environment"]["PRODUCER_PASSWORD"]
        url = f"redis://producer:{password}@127.0.0.1:{self.env['REDIS_PORT']}/0"
        self.settings = ProducerSettings.model_validate(
            {"redis_url": url, "reconnect_timeout_s": 120}
        )

    def __enter__(self) -> Stack:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.compose("down", "--volumes", "--timeout", "5")

    def compose(self, *words: str) -> str:
        return self._docker.compose(*words, timeout=300, **self.env)

    def run(self, commands: str, folder: Path) -> None:
        """Commands of a page, in a folder. What they set stays set."""
        self.env = self._docker.script(commands, folder, self.env)

    def up(self, *words: str) -> None:
        """As it is meant to be, whatever has been done to it, and well."""
        for container in self.all():
            if self.state(container)["Paused"]:
                self.do("unpause", container)
        # Compose gives up at once where a container is unhealthy, though it is about to recover.
        wait_until(lambda: all(self.health(one) != "unhealthy" for one in self.all()), _WELL_S)
        scaled = ("--scale", f"worker={WORKERS}")
        self.compose("up", "--detach", "--no-build", *scaled, *words, *_SERVICES)
        wait_until(lambda: all(self.health(one) == "healthy" for one in self.all()), _WELL_S)

    @property
    def api_url(self) -> str:
        """The base URL of OpenAI's API."""
        return f"http://127.0.0.1:{self.env['GATEWAY_PORT']}/v1"

    # Containers

    def ids(self, service: str) -> list[str]:
        """Those of a service, whether they run or not, by number."""
        label = f"com.docker.compose.project={self._project}"
        words = (
            "--filter",
            f"label={label}",
            "--filter",
            f"label=com.docker.compose.service={service}",
        )
        shown = '{{.Label "com.docker.compose.container-number"}} {{.ID}}'
        lines = self._docker("ps", "--all", *words, "--format", shown).splitlines()
        return [line.split()[1] for line in sorted(lines)]

    def all(self) -> list[str]:
        return [container for service in _SERVICES for container in self.ids(service)]

    def do(self, *words: str) -> str:
        """A command of Docker's, such as `pause` and a container."""
        return self._docker(*words)

    def inspect(self, container: str) -> Any:
        (found,) = json.loads(self._docker("inspect", container))
        return found

    def state(self, container: str) -> Any:
        return self.inspect(container)["State"]

    def health(self, container: str) -> str:
        state = self.state(container)
        return str(state["Health"]["Status"] if state["Running"] else state["Status"])

    def crash(self, container: str) -> None:
        """SIGKILL from outside, which Docker has not been asked for: so its restart policy holds.

        PID 1 of a container can only be killed from outside of it.
        """
        pid = self.state(container)["Pid"]
        outside = ("--pid", "host", "--user", "0", "--network", "none", "--entrypoint", "sh")
        self._docker("run", "--rm", *outside, OURS, "-c", f"kill -9 {pid}")

    @property
    def network(self) -> str:
        return f"{self._project}_default"

    def cut_off(self, container: str) -> None:
        """From the network: what it sends and what is sent to it is lost without a word."""
        self._docker("network", "disconnect", "--force", self.network, container)

    def reconnect(self, container: str, service: str) -> None:
        self._docker("network", "connect", "--alias", service, self.network, container)

    # What it says

    def worker_says(self, container: str, path: str) -> bool:
        """Whether a worker answers 200."""
        code = f"import urllib.request as u; u.urlopen('http://127.0.0.1:9400{path}', timeout=4)"
        return self._docker.answers("exec", container, "python", "-c", code, timeout=20)

    def prometheus(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.env['PROMETHEUS_PORT']}/api/v1/{path}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)["data"]

    def value(self, query: str) -> float | None:
        """Of a query in PromQL; None where nothing is known."""
        result = self.prometheus(f"query?{urlencode({'query': query})}")["result"]
        return float(result[0]["value"][1]) if result else None

    def alerts(self) -> set[str]:
        """Those that fire."""
        alerts = self.prometheus("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}
