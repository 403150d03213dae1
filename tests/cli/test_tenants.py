"""`rose tenants`, and where else a person sees who shares the queue."""

import io
import json

import pytest
from rich.console import Console

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.top.frames import Top
from rose_cli.top.view import draw, export
from rose_producer import Client, Tenants
from tests.support.bench import wait_until
from tests.support.command import Rose


def test_limits_are_set_one_by_one_shown_and_removed(rose: Rose) -> None:
    # given
    assert rose("tenants", "list").stdout.startswith("no tenants")
    set_it = ("tenants", "set", "mail")
    # when
    first = rose(*set_it, "--weight", "2.5", "--max-running-jobs", "8", "--max-queued-bytes", "99")
    second = rose(*set_it, "--max-queued-bytes", "none", "--tokens-per-minute", "600", "--json")
    # then: what was not said has stayed
    assert first.stdout == "mail: weight 2.5, max_running_jobs=8, max_queued_bytes=99\n"
    limits = json.loads(second.stdout)
    assert (limits["name"], limits["weight"], limits["max_running_jobs"]) == ("mail", 2.5, 8)
    assert (limits["max_queued_bytes"], limits["tokens_per_minute"]) == (None, 600)
    (row,) = map(json.loads, rose("tenants", "list", "--json").stdout.splitlines())
    assert row.items() >= limits.items()
    shown = rose("tenants", "show", "mail").stdout
    assert all(
        line in shown for line in ("weight               2.5", "max queued bytes     no limit")
    )
    # when
    assert rose("tenants", "remove", "mail").stdout == "removed the limits of mail\n"
    # then
    assert json.loads(rose("tenants", "show", "mail", "--json").stdout)["weight"] == 1
    assert "neither" in rose("tenants", "remove", "mail").stdout
    assert rose("tenants", "list").stdout.startswith("no tenants")


def test_a_class_passes_until_it_waits_again(rose: Rose, client: Client) -> None:
    # given
    client.submit("ab", tenant="mail")
    several = {"ROSE_PARTITIONS": "2"}
    said = rose("tenants", "class", **several).stdout
    assert said == "high waits\nnormal waits\nlow waits\n"
    # when
    passes = rose("tenants", "class", "high", "--passes", **several).stdout
    # then: it is seen wherever tenants are
    assert passes == "high passes: its jobs go before those of all tenants\n"
    assert rose("tenants", "list", **several).stdout.splitlines()[-1] == passes.rstrip()
    assert "passing classes      high" in rose("tenants", "show", "mail", **several).stdout
    (told,) = map(json.loads, rose("tenants", "list", "--json", **several).stdout.splitlines())
    assert told["passing_classes"] == ["high"]
    # and one more, and back
    rose("tenants", "class", "low", "--passes", **several)
    waits = rose("tenants", "class", "high", "--waits", "--json", **several).stdout
    assert json.loads(waits) == {"class": "high", "passes": False}
    assert [
        json.loads(line) for line in rose("tenants", "class", "--json").stdout.splitlines()
    ] == [
        {"class": "high", "passes": False},
        {"class": "normal", "passes": False},
        {"class": "low", "passes": True},
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["set", "a b"], "tenant: "),
        (["set", "mail", "--weight", "0"], "weight: "),
        (["set", "mail", "--max-running-jobs", "some"], "max_running_jobs: "),
        (["show", ""], "tenant: "),
        (["class", "--passes"], "class: "),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(rose: Rose, words: list[str], says: str) -> None:
    refused = rose("tenants", *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"rose: {says}")
    assert refused.stderr.count("\n") == 1


def test_a_limit_is_divided_among_the_partitions_and_whole_again(rose: Rose) -> None:
    several = {"ROSE_PARTITIONS": "4"}
    # when
    refused = rose("tenants", "set", "mail", "--max-running-jobs", "3", **several)
    rose("tenants", "set", "mail", "--max-running-jobs", "10", **several)
    # then
    assert (refused.returncode, "4 partitions" in refused.stderr) == (2, True)
    facts = json.loads(rose("tenants", "show", "mail", "--json", **several).stdout)
    assert facts["max_running_jobs"] == 10


def test_who_waits_is_seen_everywhere(rose: Rose, client: Client) -> None:
    # given: three tenants, a job of nobody, and no worker
    for tenant, count in (("lab", 2), ("mail", 3), ("x", 1), ("", 1)):
        jobs = [rose("submit", "ab", "--tenant", tenant).stdout.strip() for _ in range(count)]
    by_setting = rose("submit", "ab", ROSE_TENANT="lab").stdout.strip()
    # when
    status = rose("status").stdout
    told = json.loads(rose("status", "--json").stdout)
    frame = Top(client, [("127.0.0.1", 1)]).frame()
    listed = rose("tenants", "list", "--limit", "1").stdout
    # then
    assert "lab: 3 waiting, 0 running" in status
    assert "x: 1 waiting, 0 running" in status
    assert {row["name"]: row["waiting"] for row in told["tenants"]} == {"lab": 3, "mail": 3, "x": 1}
    assert told["waiting"]["normal"] == 8
    assert [(row.name, row.waiting) for row in frame.tenants] == [("lab", 3), ("mail", 3), ("x", 1)]
    assert all(row.oldest_waiting_s is not None for row in frame.tenants)
    assert "tenant" in export(frame)
    assert listed.splitlines()[-1].startswith("and 2 more")
    assert "tenant" in rose("status", by_setting).stdout
    assert "tenant" not in rose("status", jobs[0]).stdout


def test_tenants_beyond_a_terminal_are_counted(client: Client) -> None:
    # given
    for number in range(7):
        client.submit("ab", tenant=f"t{number}")
    frame = Top(client, [("127.0.0.1", 1)]).frame()
    console = Console(width=80, record=True, file=io.StringIO())
    # when
    console.print(draw(frame, 80, 24))
    # then
    text = console.export_text()
    assert "and 2 more tenants with jobs" in text
    assert "t4" in text
    assert "t5" not in text
    assert len(text.splitlines()) <= 24


def test_who_has_waited_longest_is_seen_beside_the_largest(client: Client) -> None:
    # given: small ones, of which the first has waited longest
    for tenant in ("first", "second", "large", "large"):
        client.submit("ab", tenant=tenant)
    # then
    assert [one.name for one in client.tenants(1).top] == ["large", "first"]


def test_over_partitions_a_tenant_is_one(broker: EmbeddedBroker, queue: str) -> None:
    # given: the jobs of one are in both partitions, in one of them behind another's
    with Client(redis_url=broker.url, queue=queue, partitions=2) as client:
        for number in range(8):
            client.submit("ab", tenant="lab", job_id=f"1-lab-{number}")
        for number in range(4):
            client.submit("ab", tenant="mail", job_id=f"{number % 2}-{number}")
        # when
        wait_until(lambda: client.queue_status().waiting["normal"] == 12)
        with Tenants(client.settings) as tenants:
            looks = client.tenants(1), tenants.top(1)
    # then: of each partition the first, each with all of its jobs
    for status in looks:
        assert {one.name: one.waiting for one in status.top} == {"mail": 4, "lab": 8}
        assert status.waiting == 12
