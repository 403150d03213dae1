"""The reading tests of the protocol's conformance suite, by name, as docs/durable-streams.md lists
them."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.durable_streams.writable import writable_streams
from tests.support.bench import Bench
from tests.support.gateway import running_gateway
from tests.support.node import Node

_PAGE = Path(__file__).parents[2] / "docs" / "durable-streams.md"
#: By which the suite asks whether a page of another origin may send If-None-Match.
_ORIGIN = "https://example.com"

Groups = dict[str, list[str]]


def listed() -> dict[str, Groups]:
    """The names of tests by their group, by the heading below which the page has them."""
    _, _, conformance = _PAGE.read_text().partition("## Conformance")
    sections: dict[str, Groups] = {}
    for section in conformance.split("\n### ")[1:]:
        heading, _, lines = section.partition("\n")
        groups = sections[heading] = defaultdict(list)
        group = ""
        for line in lines.splitlines():
            if line.startswith("**"):
                group = line.strip("*")
            elif line.startswith("- "):
                groups[group].append(line[2:])
    return sections


def full_name(group: str, name: str) -> str:
    return f"{group.replace(' > ', ' ')} {name}"


@pytest.fixture
def url(broker: EmbeddedBroker, queue: str) -> Iterator[str]:
    bench = Bench(broker, queue)
    # A long poll waits for a heartbeat; the suite waits for some of them to end.
    with (
        running_gateway(broker.url, queue, heartbeat_s=2, allowed_origins=_ORIGIN) as gateway,
        writable_streams(bench, gateway.http_port) as url,
    ):
        yield url
    bench.close()


def test_the_reading_half_conforms(node: Node, project: Path, url: str, tmp_path: Path) -> None:
    # given
    passing, *others = listed().values()
    expected = {full_name(group, name) for group, names in passing.items() for name in names}
    report = tmp_path / "report.json"
    # when
    ended = node.run(
        *("node_modules/vitest/vitest.mjs", "run", "conformance.test.mjs"),
        *("--reporter=json", f"--outputFile={report}", "--testTimeout=120000"),
        "--retry=4",  # the suite gives an event stream 2 s to say what is asked for
        *("-t", f"^({'|'.join(map(re.escape, sorted(expected)))})$"),
        cwd=project,
        env={**os.environ, "URL": url},
        timeout_s=500,
    )
    # then
    assert report.exists(), ended.stdout + ended.stderr
    (file,) = json.loads(report.read_text())["testResults"]
    judged = {result["fullName"]: result for result in file["assertionResults"]}
    failed = {
        name: "\n".join(result["failureMessages"])
        for name, result in judged.items()
        if result["status"] == "failed"
    }
    assert not failed
    assert {name for name, result in judged.items() if result["status"] == "passed"} == expected
    # and
    by_group: Groups = defaultdict(list)
    for result in judged.values():
        by_group[" > ".join(result["ancestorTitles"])].append(result["title"])
    not_applying = {
        full_name(group, name)
        for groups in others
        for group, names in groups.items()
        for name in (by_group[group] if names == ["all"] else names)
    }
    assert judged.keys() - expected == not_applying
