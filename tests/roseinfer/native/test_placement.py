"""Threads of a team do not stay on one processor, and keep the affinity that they had."""

import os
import sys
from collections.abc import Iterator
from ctypes import CDLL, c_int

import pytest

from tests.roseinfer.native import builds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked")


@pytest.fixture
def hooks() -> CDLL:
    library = builds.with_hooks().library
    assert library is not None
    return library


@pytest.fixture
def alone() -> Iterator[int]:
    """The one processor that this thread may be on for now."""
    allowed = os.sched_getaffinity(0)
    processor = min(allowed)
    os.sched_setaffinity(0, {processor})
    yield processor
    os.sched_setaffinity(0, allowed)


def _settle(hooks: CDLL, *others: int) -> int:
    return int(hooks.rose_settle((c_int * len(others))(*others), len(others)))


def test_a_thread_leaves_the_processor_of_another(hooks: CDLL) -> None:
    # given: all processors but one have a thread of the team
    allowed = sorted(os.sched_getaffinity(0))
    for free in allowed:
        others = [processor for processor in allowed if processor != free]
        # when
        found = _settle(hooks, *others)
        # then
        assert found == free
        assert os.sched_getaffinity(0) == set(allowed)


def test_it_stays_within_its_affinity(hooks: CDLL, alone: int) -> None:
    assert _settle(hooks, alone) == alone
    assert os.sched_getaffinity(0) == {alone}


def test_more_threads_than_processors_stay_where_they_are(hooks: CDLL) -> None:
    allowed = os.sched_getaffinity(0)
    assert _settle(hooks, *allowed) in allowed
    assert os.sched_getaffinity(0) == allowed
