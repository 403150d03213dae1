"""Which partition of a worker gets the slots that become free."""

import asyncio
from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from rose.protocol import Partition
from rose_worker.jobs import JobTable, RoundRobin

_partitions = [Partition("turns", index) for index in range(6)]


def test_who_has_just_had_a_slot_leaves_the_next_to_those_that_wait() -> None:
    # given: two partitions want the only slot, and the first gets it
    first, second, *_ = _partitions
    table = JobTable(1)
    with table.waiting(second):
        with table.reserve(first, 1):
            assert table.share(second) == 0
        # when: it is free again, and the first one asks before the second one wakes
        assert table.share(first) == 0
        # then
        assert table.share(second) == 1
    # and where nobody waits, it has it again
    assert table.share(first) == 1


def test_those_that_wait_ask_in_the_order_of_their_last_round_robin() -> None:
    # given: the last turns were of 2, 0, 1; they began to wait as 1, 2, 0
    table, asked = JobTable(4), []
    for index in (2, 0, 1):
        with table.reserve(_partitions[index], 1):
            pass

    async def ask(partition: Partition) -> None:
        with table.waiting(partition) as turn:
            await turn.wait()
        asked.append((partition.index, table.share(partition)))

    async def wait_together() -> None:
        tasks = [asyncio.create_task(ask(_partitions[index])) for index in (1, 2, 0)]
        await asyncio.sleep(0)
        # when
        with table.reserve(_partitions[3], 1):
            pass
        await asyncio.gather(*tasks)

    asyncio.run(wait_together())
    # then
    assert asked == [(2, 2), (0, 2), (1, 4)]


@given(
    slots=st.integers(1, 32),
    partitions=st.integers(2, 6),
    steps=st.lists(st.tuples(st.integers(1, 32), st.integers(0, 5)), min_size=5, max_size=60),
)
def test_nobody_waits_for_more_than_all_slots_and_one_for_each_partition(
    slots: int, partitions: int, steps: list[tuple[int, int]]
) -> None:
    # given: partitions that always have jobs
    round_robin, running, now = RoundRobin(), 0, 0
    wanting = _partitions[:partitions]
    last_turn, of_others = dict.fromkeys(wanting, 0), dict.fromkeys(wanting, 0)
    for ends, comes_back in steps:
        # when: some jobs end, and one partition asks before the others wake
        running -= min(running, ends)
        in_turn = sorted(wanting, key=lambda partition: last_turn[partition])
        asking = [wanting[comes_back % partitions], *in_turn]
        while asking:
            partition = asking.pop(0)
            with ExitStack() as waiting:
                for other in {*asking} - {partition}:
                    waiting.enter_context(round_robin.waiting(other))
                share = round_robin.share(partition, slots - running)
            if share:
                round_robin.took(partition)
                running, now = running + share, now + 1
                last_turn[partition] = now
                of_others = {p: count + share for p, count in of_others.items()}
                of_others[partition] = 0
            # then
            assert max(of_others.values()) <= slots + partitions
        assert running == slots
