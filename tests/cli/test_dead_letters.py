"""`rose dead-letters`: listed, shown, retried and purged."""

import json
import os

import redis

from rose.protocol import Partition, Priority
from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.command import Rose
from tests.support.echo import SLOW, StartWorker, running


def test_dead_letters_are_listed_shown_retried_and_purged(
    rose: Rose,
    rose_process: Rose,
    client: Client,
    raw: redis.Redis,
    partition: Partition,
    start_worker: StartWorker,
) -> None:
    # given: bytes that nobody can read, and a job too long for the worker that is to go on with it
    raw.xadd(partition.jobs(Priority.NORMAL), {"job": b"\xc1garbage"})
    long = client.submit([{"role": "user", "content": "secret\x1b[31m"}], max_new_tokens=200)
    large = start_worker(grace_s=0, **SLOW)
    wait_until(lambda: running(long))
    large.terminate()
    worker = start_worker(max_context=4)
    wait_until(lambda: raw.xlen(partition.dead) == 2)
    worker.terminate()
    # when: list
    listed = rose("dead-letters", "list")
    letters = [json.loads(x) for x in rose("dead-letters", "list", "--json").stdout.splitlines()]
    by_code = {letter["code"]: letter for letter in letters}
    too_long, garbage = by_code["prompt_too_long"], by_code["malformed_message"]
    # then
    assert listed.stdout.count("\n") == 3
    assert all(letter["handle"] in listed.stdout for letter in letters)
    assert (too_long["job_id"], garbage["job_id"], garbage["bytes"]) == (long.id, None, 8)
    only = rose("dead-letters", "list", "--code", "malformed_message", "--json").stdout
    assert [json.loads(line) for line in only.splitlines()] == [garbage]

    # when: show
    shown = rose("dead-letters", "show", too_long["handle"])
    # then: the prompt only when asked for, and never with its control characters
    assert long.id in shown.stdout
    assert "secret" not in shown.stdout
    assert "secret" not in rose("dead-letters", "show", too_long["handle"], "--json").stdout
    with_prompt = rose("dead-letters", "show", too_long["handle"], "--prompt").stdout
    assert "secret" in with_prompt
    assert "\x1b" not in with_prompt
    as_json = rose("dead-letters", "show", too_long["handle"], "--json", "--prompt").stdout
    assert json.loads(as_json)["job"]["prompt"][0]["content"] == "secret\x1b[31m"
    unreadable = json.loads(rose("dead-letters", "show", garbage["handle"], "--json").stdout)
    assert unreadable["cannot_be_decoded"]["error"] == "malformed_message"
    raw_bytes = rose_process("dead-letters", "show", garbage["handle"], "--raw", text=False)
    assert raw_bytes.stdout == b"\xc1garbage"

    # when: retry, with a worker that has room
    retried = rose("dead-letters", "retry", "--all")
    start_worker()
    # then: what cannot be read stays, with its error
    assert (retried.returncode, retried.stderr.count("\n")) == (1, 1)
    old, _, new = retried.stdout.strip().partition(" -> ")
    assert old == long.id
    assert rose("result", new).stdout.startswith("115 101 ")
    ((_, left),) = raw.xrange(partition.dead)
    assert left[b"job"] == b"\xc1garbage"

    # when: purge
    unasked = rose("dead-letters", "purge", garbage["handle"])
    kept = rose("dead-letters", "purge", "--all", "--older-than", "7d", "--yes")
    gone = rose("dead-letters", "purge", "--all", "--yes", "--json")
    # then
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
    assert kept.stdout == "0 dead letters purged\n"
    assert gone.stdout == '{"purged": 1}\n'
    assert rose("dead-letters", "list").stdout == "no dead letters\n"


def test_a_person_is_asked_before_a_purge(
    rose_process: Rose, raw: redis.Redis, partition: Partition
) -> None:
    # given
    raw.xadd(partition.dead, {"job": b"x"})
    for answer, left in ((b"n\n", 1), (b"y\n", 0)):
        # when
        keyboard, terminal = os.openpty()
        os.write(keyboard, answer)
        rose_process("dead-letters", "purge", "--all", stdin=terminal)
        os.close(keyboard)
        os.close(terminal)
        # then
        assert raw.xlen(partition.dead) == left
