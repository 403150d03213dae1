"""A primary that a real Sentinel watches, and a replica to which it fails over."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from demo.broker import EmbeddedBroker, free_port
from producer import AsyncClient, Client, ProducerSettings
from protocol import Partition
from tests.bench import Bench, token, wait_until
from tests.conftest import create_groups, needs_redis_server
from tests.listeners import Listeners

pytestmark = needs_redis_server


class Watched(EmbeddedBroker):
    """The primary; `url` is by way of the Sentinel."""


@pytest.fixture
def servers() -> Iterator[list[EmbeddedBroker]]:
    """The primary, then its replica."""
    with ExitStack() as stack:
        primary = stack.enter_context(EmbeddedBroker(fake=False))
        options = {"replicaof": f"127.0.0.1 {primary.port}", "repl-diskless-sync-delay": "0"}
        replica = stack.enter_context(EmbeddedBroker(fake=False, options=options))
        yield [primary, replica]


def test_x(servers: list[EmbeddedBroker]) -> None:
    pass
