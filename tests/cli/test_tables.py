"""On 80 columns and 24 lines nothing is cut but names and running text, and those on purpose."""

import io
import time

import pytest
from rich.console import Console, RenderableType

from rose_cli.commands.dead_letters import table_of
from rose_cli.commands.jobs import facts_of
from rose_cli.demo.prompts import REQUESTS, title
from rose_cli.demo.state import DemoState, StreamRecord, WorkerView
from rose_cli.demo.view import draw as draw_demo
from rose_cli.demo.view import result_table
from rose_cli.doctor.findings import row_of, warn
from rose_cli.tables import Column, elide_middle, facts_table, make_table
from rose_cli.top.frames import Frame, WorkerRow
from rose_cli.top.view import draw as draw_top
from rose_producer import FinishedEvent, JobStatus, QueueStatus, Result, TokenEvent
from rose_producer.dead_letters import DeadLetter
from tests.support.command import run_rose

POD = "rose-worker-6d8f9c7b5d-x2x7q-1-3fa9c1"
HOST = "gpu-node-17.cluster.example.org-48211-c4d2e0"
NOW_MS = int(time.time() * 1000)


def drawn(drawing: RenderableType, width: int = 80) -> list[str]:
    """Its lines on a terminal of that width; rich would wrap or cut what is wider."""
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(drawing)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def frame(workers: int = 2) -> Frame:
    rows = [
        WorkerRow(POD, 128, "127.0.0.1:9400", True, "cuda:0", 128, 128, 1.0, 12_345.6, 1_234_567),
        WorkerRow(HOST, 7),
    ]
    rows += [WorkerRow(f"{POD}{i}", 1, "10.0.0.1:9400", False, "cpu") for i in range(workers - 2)]
    return Frame(
        at=0,
        queue="conversations-of-the-whole-company-in-europe",
        model="example-organisation/a-model-with-a-long-name-70B-Instruct",
        waiting={"high": 10_000, "normal": 20_000, "low": 30_000},
        running=12_345,
        dead_letters=10_000,
        oldest_waiting_s=12_345.6,
        oldest_running_s=12_345.6,
        workers=rows,
        other_workers=2,
        tokens_per_s=123_456,
        history=[float(i) for i in range(60)],
    )


def test_top_shows_each_column_of_each_worker() -> None:
    # when
    lines = drawn(draw_top(frame(), 80, 24))
    # then
    header = next(i for i, line in enumerate(lines) if line.startswith("worker"))
    names = ["worker", "state", "slots", "KV cache", "tokens/s", "leases", "cached", "ended"]
    assert lines[header].split() == " ".join(names).split()
    first, second = lines[header + 1 : header + 3]
    pod, *rest = first.split()
    assert rest == ["cuda:0", "128/128", "100%", "12,346", "128", "1,234,567"]
    assert pod.partition("…")[0] in POD
    assert pod.endswith("3fa9c1")
    assert second.split()[1:] == ["silent", "7"]
    assert "high 10000  normal 20000  low 30000" in "\n".join(lines)


def test_a_wide_top_has_more_columns_and_whole_names() -> None:
    shown = "\n".join(drawn(draw_top(frame(), 160, 50), 160))
    assert POD in shown
    assert HOST in shown
    assert "127.0.0.1:9400" in shown
    assert "metrics" in shown


def test_top_counts_the_workers_that_24_lines_have_no_room_for() -> None:
    lines = drawn(draw_top(frame(workers=40), 80, 24))
    assert len(lines) <= 24
    shown = sum("no Redis" in line for line in lines) + 2
    assert f"and {40 - shown} more workers, 0 tokens/s" in lines


def records() -> list[StreamRecord]:
    made = []
    for number, request in enumerate(REQUESTS, 1):
        record = StreamRecord(number, title(request))
        tokens = tuple(range(200))
        record.add(TokenEvent(index=0, token_ids=tokens, text="and then it rained " * 40))
        record.workers = ["worker-a", "worker-b"]
        record.moved_at = 199
        made.append(record)
    return made


def test_the_demo_leaves_room_for_its_notes_and_cuts_only_text() -> None:
    # given: one stream in each state
    streams = records()
    streams[0].workers = []
    streams[1].workers = ["worker-a"]
    streams[2].add(FinishedEvent(index=200, reason="eos", prompt_tokens=1))
    workers = [WorkerView("worker-a", 0, 7, killed_at_s=1.5), WorkerView("worker-b", 7, 7)]
    # when
    lines = drawn(draw_demo(DemoState(streams, workers), 80))
    # then
    assert len(lines) <= 20
    assert "killed at 1.5 s with 14 streams in hand" in lines[1]
    assert lines[4].split() == ["#", "worker", "state", "tokens", "text"]
    states = ["waiting", "orphaned", "done", *["resumed"] * 11]
    for line, state in zip(lines[5:], states, strict=True):
        assert state in line
        assert line.count("…") == 1
        assert line.endswith("and then it rained")


def test_the_comparison_of_the_demo_fits_with_its_verdict() -> None:
    # given
    streams = records()
    undisturbed = [Result("j", "x", (1,), "eos", 1)] * len(streams)
    # when
    header, *rows = drawn(result_table(streams, undisturbed, 80))
    # then
    names = ["#", "prompt", "tokens", "worker", "missing", "doubled", "compared"]
    assert header.split() == names
    assert len(rows) == len(streams)
    for row in rows:
        assert "a → b at 199" in row
        assert row.endswith("DIFFERS")
    assert "the text ends" in drawn(result_table(streams, undisturbed, 120), 120)[0]


def test_a_dead_letter_is_shown_whole() -> None:
    # given
    message = "the prompt has 140200 tokens, which leaves no room in a context of 600: send less"
    job = "0-3c13fabd54591a8eefceebd191d6cd74"
    letter = DeadLetter(
        "1023:1795312701073-12", NOW_MS, job, "malformed_message", message, "s", "e", b"x" * 70_000
    )
    # when
    header, *rows = drawn(table_of([letter], 80))
    wide = drawn(table_of([letter], 240), 240)
    # then
    assert header.split() == ["handle", "age", "code", "message"]
    assert letter.handle in rows[0]
    column = header.index("message")
    assert " ".join(row[column:].strip() for row in rows) == message
    assert "…" not in "".join(rows)
    assert all(word in wide[1] for word in (job, message, "70000"))


@pytest.mark.parametrize(
    "status",
    [
        QueueStatus(
            "q" * 60, {"high": 1, "normal": 2, "low": 3}, 4, 5, 6, POD, 7, {POD: 0, HOST: 8}, NOW_MS
        ),
        JobStatus(f"0-{'a' * 32}", "queued", 1, 2, 3, HOST, True, NOW_MS, NOW_MS, None, "0-b"),
    ],
)
def test_a_status_is_shown_whole(status: QueueStatus | JobStatus) -> None:
    facts = facts_of(status)
    shown = " ".join(" ".join(drawn(facts_table(facts))).split())
    for name, value in facts.items():
        assert f"{name} {' '.join(value.split())}" in shown


def test_a_finding_wraps_beside_its_name_and_says_what_to_do_on_a_line_of_its_own() -> None:
    lines = drawn(row_of(warn("durability", "a power cut may lose the last second " * 3, "do it")))
    assert lines[0].startswith("warn  durability  a power cut")
    assert lines[1].startswith(" " * 18)
    assert lines[-1].strip() == "-> do it"


def test_the_list_of_commands_is_not_cut() -> None:
    _, _, commands = run_rose("--help", COLUMNS="80").stdout.partition("Commands:")
    assert commands
    assert "..." not in commands


def test_spare_columns_are_left_out_the_last_one_first() -> None:
    # given
    columns = [
        Column("name", ["x" * 40], fit=elide_middle),
        Column("count", ["1"], right=True),
        Column("first", ["y" * 10], spare=True),
        Column("second", ["z" * 10], spare=True),
    ]
    # then
    for width, headers in ((80, 4), (62, 3), (50, 2), (30, 2)):
        assert len(drawn(make_table(columns, width), width)[0].split()) == headers
