"""One blocking client for the threads of a process, and after a fork."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rose_producer import Client
from tests.conftest import needs_redis_server


def test_threads_share_a_client(client: Client) -> None:
    # when
    with ThreadPoolExecutor(8) as threads:
        jobs = list(threads.map(client.submit, ["x"] * 160))
    # then
    assert len({job.id for job in jobs}) == 160
    assert all(job.status().status == "queued" for job in jobs)


@needs_redis_server
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_connections_of_its_own(client: Client) -> None:
    # given: a connection that is open
    client.submit("x")
    # when: both use the client at the same time
    child = os.fork()
    if child == 0:
        try:
            for _ in range(50):
                client.submit("child")
        finally:
            os._exit(0)
    for _ in range(50):
        client.submit("parent")
    os.waitpid(child, 0)
    # then: nobody has read the other's replies
    assert client.queue_status().waiting["normal"] == 101
