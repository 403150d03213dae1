"""Real parts for every test: brokers, queues of their own, workers as processes."""

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis

from rose.cores import usable_cores
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker, find_redis_server
from rose_cli.local.services import WorkerProcess
from rose_producer import Client
from tests.support.bench import Bench
from tests.support.echo import serving
from tests.support.nursery import forking
from tests.support.wheel import build_wheel, install, new_environment

# Two cores, and processes beside each other: threads that wait for each other cost more than they
# bring. Inherited by the worker processes.
os.environ["OMP_NUM_THREADS"] = "1"
# The caller's settings must not reach the tests, nor what they and their fixtures start. What `make
# sanitize` says is no setting.
for _name in [name for name in os.environ if name.startswith("ROSE_")]:
    if not _name.startswith("ROSE_TEST_"):
        del os.environ[_name]
# Each build of the compiled decoder is tested, and not only the fastest ones of this processor.
os.environ.setdefault("ROSEINFER_NATIVE", "all")
# No test asks a hub, where each question is repeated for half a minute if there is no network. It
# must be known before anything imports huggingface_hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Triton's kernels run in its interpreter, unless the caller has a GPU and says 0. It must be known
# before anything imports Triton.
os.environ.setdefault("TRITON_INTERPRET", "1")

# On a busy machine anything may be slow: time decides no test.
hypothesis.settings.register_profile(
    "rose", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("rose")

needs_redis_server = pytest.mark.skipif(
    find_redis_server() is None, reason="needs a real redis-server on PATH"
)

_numbers = itertools.count()


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: two more than the cores that this process may use, since half of the tests' time
    is spent waiting for leases, deadlines and other processes."""
    return usable_cores() + 2


def pytest_configure() -> None:
    """A shell starts what runs in the background with SIGINT ignored. Processes of tests would
    inherit that, and some are sent one."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wheel", type=Path, help="test this wheel, instead of one of this tree")
    parser.addoption(
        "--compose", action="store_true", help="bring docker-compose.yml up: make test-compose"
    )


@pytest.fixture(scope="session", autouse=True)
def _forked_services() -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    with forking():
        yield


@pytest.fixture(scope="session")
def _brokers() -> Iterator[Callable[[bool], EmbeddedBroker]]:
    with ExitStack() as stack:
        started: dict[bool, EmbeddedBroker] = {}

        def broker(fake: bool) -> EmbeddedBroker:
            if fake not in started:
                started[fake] = stack.enter_context(EmbeddedBroker(fake=fake))
            return started[fake]

        yield broker


@pytest.fixture(params=[pytest.param("redis-server", marks=needs_redis_server), "fakeredis"])
def any_broker(
    request: pytest.FixtureRequest, _brokers: Callable[[bool], EmbeddedBroker]
) -> EmbeddedBroker:
    """Each broker the protocol must run on. Shared: use a queue of your own."""
    return _brokers(request.param == "fakeredis")


@pytest.fixture
def broker(_brokers: Callable[[bool], EmbeddedBroker]) -> EmbeddedBroker:
    """The best broker there is. Shared: use a queue of your own."""
    return _brokers(find_redis_server() is None)


@pytest.fixture
def own_redis() -> Iterator[EmbeddedBroker]:
    """A real redis-server that this test may kill. Mark the test `needs_redis_server`."""
    with EmbeddedBroker(fake=False) as server:
        yield server


@pytest.fixture
def admin(own_redis: EmbeddedBroker) -> Iterator[redis.Redis]:
    """A plain Redis client of `own_redis`."""
    with redis.Redis(port=own_redis.port, protocol=2) as client:
        yield client


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given: Path | None = request.config.getoption("--wheel")
    return given or build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment into which the wheel was installed."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    new_environment(environment)
    install(wheel, environment)
    return environment / "bin"


@pytest.fixture
def queue() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def client(broker: EmbeddedBroker, queue: str) -> Iterator[Client]:
    with Client(redis_url=broker.url, queue=queue, redis_retries=1) as client:
        yield client


@pytest.fixture
def partition(queue: str) -> Partition:
    return Partition(queue)


@pytest.fixture
def bench(any_broker: EmbeddedBroker, queue: str) -> Iterator[Bench]:
    bench = Bench(any_broker, queue)
    yield bench
    bench.close()


@pytest.fixture
def raw(broker: EmbeddedBroker) -> Iterator[redis.Redis]:
    """A plain Redis client, for looking behind the protocol's back."""
    with redis.Redis(port=broker.port, protocol=2) as client:
        yield client


@pytest.fixture
def start_worker(broker: EmbeddedBroker, queue: str) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts `rose worker` processes, as `serving` does."""
    with ExitStack() as stack:
        numbers = itertools.count()

        def start(**settings: Any) -> WorkerProcess:
            worker = serving(f"w{next(numbers)}", broker.url, **{"queue": queue, **settings})
            return stack.enter_context(worker)

        yield start
