"""Tenants and their jobs, for the tests of the scripts."""

from collections.abc import Iterator

import pytest

from rose_producer import Tenants
from tests.support.bench import Bench
from tests.support.floor import Floor


@pytest.fixture
def tenants(bench: Bench) -> Iterator[Tenants]:
    with Tenants(bench.client.settings) as tenants:
        yield tenants


@pytest.fixture
def floor(bench: Bench) -> Floor:
    return Floor(bench)
