from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.gateway.sdk.doors import Door, open_door, openai_client


@pytest.fixture(scope="package")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(tmp_path_factory.mktemp("model")) as door:
        yield door


@pytest.fixture
def client(door: Door) -> Iterator[OpenAI]:
    with openai_client(door.url, timeout=90) as client:
        yield client
