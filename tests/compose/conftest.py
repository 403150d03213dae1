"""The stack, for all tests of this folder: `make test-compose` runs them, `make test` does not."""

from collections.abc import Iterator

import pytest

from tests.compose.docker import Docker, NoDocker, any_docker
from tests.compose.images import make_all
from tests.compose.stack import Stack
from tests.compose.streams import Streams


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(config.rootpath / "tests" / "compose"):
            # Images that the first test waits for are made with limits of their own.
            item.add_marker(pytest.mark.timeout(900, func_only=True))


@pytest.fixture(scope="session")
def docker(request: pytest.FixtureRequest) -> Iterator[Docker]:
    if not request.config.getoption("--compose"):
        pytest.skip("brings docker-compose.yml up: make test-compose")
    try:
        with any_docker() as docker:
            make_all(docker)
            yield docker
    except NoDocker as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def running(docker: Docker) -> Iterator[Stack]:
    with Stack(docker) as stack:
        yield stack


@pytest.fixture
def stack(running: Stack) -> Iterator[Stack]:
    """Well before and after."""
    yield running
    running.up()


@pytest.fixture(scope="session")
def undisturbed(running: Stack) -> list[tuple[int, ...]]:
    """What the jobs of `streams` answer when nothing is done to anybody."""
    return Streams(running.settings).answers()
