"""The context of a process that a test plays alone."""

from pathlib import Path

from tests.chaos.context import Context, Options


def a_context(folder: Path, of: int = 1) -> Context:
    """Nobody answers at its Redis."""
    return Context(
        options=Options(seed=1, jobs=10),
        folder=folder,
        redis_url="redis://127.0.0.1:1/0",
        partitions=1,
        index=0,
        of=of,
        incarnation=0,
        http_port=0,
    )
