from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.sdk.doors import Door, open_door


@pytest.fixture(scope="package")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(tmp_path_factory.mktemp("model")) as door:
        yield door
