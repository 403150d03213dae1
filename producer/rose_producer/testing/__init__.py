"""To test a service that uses the queue: without Redis, a worker, a GPU or torch.

    # conftest.py
    pytest_plugins = ["rose_producer.testing.fixtures"]

    # test_service.py
    def test_a_summary_is_stored(rose_queue):
        rose_queue.answers("A bear finds a boat.")
        assert summarize("...") == "A bear finds a boat."
        assert "bear" in rose_queue.jobs[0].prompt

Everything between is real: the client, its streams and Redis' scripts, in a Redis that lives in
this process (fakeredis: `pip install 'roseinfer[testing]'`). Only the model is played.
"""

from typing import TYPE_CHECKING

from rose.lazy import loader

if TYPE_CHECKING:
    from rose_producer.testing.answers import Answer
    from rose_producer.testing.fake_queue import FakeQueue
    from rose_producer.testing.fake_redis import FakeRedis
    from rose_producer.testing.open_job import OpenJob

__all__ = ["Answer", "FakeQueue", "FakeRedis", "OpenJob"]

__getattr__ = loader(
    __name__,
    {
        "answers": ["Answer"],
        "fake_queue": ["FakeQueue"],
        "fake_redis": ["FakeRedis"],
        "open_job": ["OpenJob"],
    },
)
