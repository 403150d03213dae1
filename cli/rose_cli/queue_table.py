"""What queues there are and what their workers serve, for `rose status`."""

from collections.abc import Sequence

from rich.table import Table

from rose.protocol.announced_model import AnnouncedModel
from rose.protocol.status import QueueStatus
from rose_cli.output import printable
from rose_cli.tables import Column, elide_middle, make_table


def describe_model(model: AnnouncedModel) -> str:
    """On one line. What a worker does not say is left out."""
    facts = [printable(model.name)]
    if model.context_tokens is not None:
        facts.append(f"{model.context_tokens:,} tokens of context")
    if model.engine:
        facts.append(f"engine {printable(model.engine)}")
    if model.dtype and model.dtype != "none":
        facts.append(printable(model.dtype))
    if model.adapters:
        facts.append(f"adapters {printable(' '.join(model.adapters))}")
    return ", ".join(facts)


def queue_table(queues: Sequence[QueueStatus], width: int) -> Table:
    """A line for each queue, with the model that its workers have announced."""
    known = [(queue, queue.served) for queue in queues if queue.served is not None]
    models = [model for _, model in known]
    contexts = [model.context_tokens for model in models]
    return make_table(
        [
            Column("queue", [queue.queue for queue, _ in known]),
            Column("model", [printable(model.name) for model in models], fit=elide_middle),
            Column("engine", [printable(model.engine) or "-" for model in models]),
            Column("context", [f"{c:,}" if c else "-" for c in contexts], right=True),
            Column("workers", [f"{model.workers:,}" for model in models], right=True),
            Column("waiting", [f"{sum(q.waiting.values()):,}" for q, _ in known], right=True),
            Column("running", [f"{queue.running:,}" for queue, _ in known], right=True),
            Column("dtype", [printable(model.dtype) or "-" for model in models], spare=True),
            Column("adapters", [" ".join(m.adapters) or "-" for m in models], spare=True),
        ],
        width,
    )
