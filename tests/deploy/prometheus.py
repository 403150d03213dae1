"""A real Prometheus with the shipped configuration."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from deploy.expressions import RULES
from rose_cli.local.broker import free_port
from tests.deploy.files import services
from tests.support.children import begin

SHIPPED = RULES.parent


class Prometheus:
    """As its container starts it, in fast motion, for one worker and perhaps one gateway here."""

    def __init__(self, folder: Path, worker_port: int, gateway_port: int | None = None) -> None:
        config = folder / "prometheus"
        shutil.copytree(SHIPPED, config)
        settings = yaml.safe_load((config / "prometheus.yml").read_text())
        for name in ("scrape_interval", "scrape_timeout", "evaluation_interval"):
            settings["global"][name] = "1s"
        (config / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._targets = 0
        for file, port in (("workers.yml", worker_port), ("gateways/gateways.yml", gateway_port)):
            if port is not None:
                target = [{"targets": [f"127.0.0.1:{port}"]}]
                (config / "targets" / file).write_text(yaml.safe_dump(target))
                self._targets += 1
        self._address = f"127.0.0.1:{free_port()}"
        self._log = folder / "prometheus.log"
        command = [
            word.replace("/etc/prometheus", str(config)).replace("=/prometheus", f"={folder}/data")
            for word in services()["prometheus"]["command"]
        ]
        self._words = ["prometheus", *command, f"--web.listen-address={self._address}"]

    def __enter__(self) -> Prometheus:
        self._process = begin(self._words, self._log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        with urllib.request.urlopen(url, timeout=60) as reply:
            return json.load(reply)["data"]

    def ask(self, promql: str) -> list[float]:
        """The values now. Raises HTTPError where it is no expression."""
        return [float(sample["value"][1]) for sample in self.get("query", query=promql)["result"]]

    @property
    def ready(self) -> bool:
        try:
            return self.ask("up") == [1] * self._targets
        except OSError:
            return False
