"""The shipped configuration in a real Prometheus: rules, and every expression under load."""

import math
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.expressions import Expression, of_dashboards, of_rules, rules
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess, WorkerProcess
from rose_producer import Client, Job, Request
from tests.conftest import needs_redis_server
from tests.deploy.prometheus import SHIPPED, Prometheus
from tests.support.bench import wait_until
from tests.support.gateway import running_gateway
from tests.support.time_limit import TimeLimit

RUNBOOKS = "docs/operations.md"

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="needs prometheus and promtool on PATH (Debian: apt-get install prometheus)",
)


# The files


@needs_prometheus
def test_promtool_accepts_the_configuration_and_its_rules() -> None:
    words = ["promtool", "check", "config", SHIPPED / "prometheus.yml"]
    said = subprocess.run(words, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


@needs_prometheus
def test_every_alert_fires_when_it_should() -> None:
    cases = sorted(SHIPPED.glob("tests/*.yml"))
    said = subprocess.run(["promtool", "test", "rules", *cases], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_alert_has_a_case_and_words_and_a_runbook() -> None:
    cases = "".join(path.read_text() for path in SHIPPED.glob("tests/*.yml"))
    fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts: *[&*\n]", cases))
    for alert in rules("alert"):
        name, said = alert["alert"], alert["annotations"]
        assert name in fired
        assert said["summary"]
        assert said["description"]
        assert said["runbook_url"] == f"{RUNBOOKS}#alert-{name.lower()}"
        assert alert["labels"]["severity"] in ("critical", "warning")


# A live one


@pytest.fixture
def worker(broker: EmbeddedBroker, queue: str) -> Iterator[WorkerProcess]:
    given: dict[str, str | float] = {"queue": queue, "max_batch_size": 2, "torch_threads": 1}
    with WorkerProcess("watched", broker.url, speculation=True, **given) as worker:
        yield worker


@pytest.fixture
def gateway(broker: EmbeddedBroker, queue: str) -> Iterator[GatewayProcess]:
    with running_gateway(broker.url, queue) as gateway:
        yield gateway


@pytest.fixture
def prometheus(
    worker: WorkerProcess, gateway: GatewayProcess, tmp_path: Path
) -> Iterator[Prometheus]:
    with Prometheus(tmp_path, worker.http_port, gateway.http_port) as prometheus:
        yield prometheus


@needs_redis_server
@needs_prometheus
def test_every_expression_returns_data_under_load(
    client: Client, worker: WorkerProcess, gateway: GatewayProcess, prometheus: Prometheus
) -> None:
    # given: more jobs than slots, with a beginning in common, until everything has an answer
    worker.wait_ready()
    wait_until(lambda: prometheus.ready, 60)
    load = Load(client, gateway.url)
    panels, rated = list(of_dashboards()), list(of_rules())
    open_ones = {one.where + one.promql: one for one in panels + rated}
    limit = TimeLimit(120)
    # when
    while open_ones and not limit.passed:
        load.keep_up()
        open_ones = {
            key: one
            for key, one in open_ones.items()
            if not answered(one, prometheus.ask(asked(one)))
        }
    # then
    assert [(one.where, asked(one)) for one in open_ones.values()] == []
    groups = prometheus.get("rules")["groups"]
    states = [(rule["name"], rule["health"]) for group in groups for rule in group["rules"]]
    assert [state for state in states if state[1] != "ok"] == []
    assert len(states) == len(rated)
    print(f"{len(panels)} expressions of panels, {len(rated)} of rules: each returned data")
    # and: what Prometheus counts in the end is what is in the logs
    tokens = load.tokens()
    wait_until(lambda: prometheus.ask("sum(rose_generated_tokens_total)") == [tokens])
    wait_until(lambda: prometheus.ask("sum(rose_batch_sequences)") == [0])


def asked(one: Expression) -> str:
    """An alert without its comparisons, and with all that it looks at: well or not, it has data."""
    if not one.where.startswith("alert "):
        return one.plain
    bare = re.sub(r" (>|==) [\d.]+( \* [\d.]+)?", "", one.plain)
    return bare.replace("unless", "and")


def answered(one: Expression, values: list[float]) -> bool:
    # Tokens are drafted where that pays by measured time: a busy machine may draft none, of which
    # no share was right.
    may_be_of_none = "rate(rose_drafted_tokens_total" in one.promql
    return any(may_be_of_none or math.isfinite(value) for value in values)


class Load:
    """Jobs of the built-in model, always some more than it has slots."""

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self._url = url
        self._jobs: list[Job] = []

    def keep_up(self) -> None:
        self._follow_one_over_http()
        if self._client.queue_status().waiting["normal"] < 4:
            story = "Once upon a time, there was a shy cow named Luna. She lived on the farm. "
            asked = {"max_new_tokens": 20, "ignore_eos": True}
            tenants = ("mail", "lab", "")
            more = [
                Request(f"{story}{n}", sampling=asked, tenant=tenants[n % 3]) for n in range(12)
            ]
            self._jobs += self._client.submit_many(more)

    def _follow_one_over_http(self) -> None:
        if self._jobs:
            job = self._jobs[-1].id
            with urllib.request.urlopen(f"{self._url}/jobs/{job}/events", timeout=90) as stream:
                assert b"finished" in stream.read()

    def tokens(self) -> int:
        """Generated for all of them, once they have ended."""
        return sum(len(job.result(60).token_ids) for job in self._jobs)
