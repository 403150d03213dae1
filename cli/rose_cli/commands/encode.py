"""`rose embed` and `rose rerank`: numbers from the queue's workers."""

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from rose.errors import InvalidParameter
from rose_cli.options import AsJson, Priority, Queue, RedisUrl, settings_of
from rose_cli.output import print_json, print_text, printable, read_stdin
from rose_producer import Client
from rose_producer.request import PriorityLike

Texts = Annotated[
    list[str] | None, typer.Argument(help="Texts; the lines of stdin if there are none.")
]
Truncate = Annotated[bool, typer.Option(help="Cut texts that are too long.")]
Timeout = Annotated[float | None, typer.Option(help="Seconds to wait.")]


def embed(
    texts: Texts = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Only so many numbers of each vector.")
    ] = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="A prompt of the model, such as query, before each text.")
    ] = None,
    truncate: Truncate = False,
    priority: Priority = "normal",
    timeout: Timeout = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Print the vector of each text, a JSON array a line."""
    inputs = _inputs(texts)
    with Client(settings_of(redis_url, queue)) as client:
        vectors = client.embed(
            inputs,
            dimensions=dimensions,
            prompt_name=prompt_name,
            truncate=truncate,
            priority=cast(PriorityLike, priority),  # a wrong one is refused with the rest
            timeout_s=timeout,
        ).vectors
    for text, vector in zip(inputs, vectors, strict=True):
        if as_json:
            print_json({"text": text, "embedding": list(vector)})
        else:
            print_text(str(list(vector)))


def rerank(
    query: Annotated[str, typer.Argument(help="What the texts are to fit.")],
    texts: Texts = None,
    top: Annotated[int | None, typer.Option(min=1, help="Only so many.")] = None,
    truncate: Truncate = True,
    priority: Priority = "normal",
    timeout: Timeout = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Print texts with their scores, the one that fits a query best first."""
    inputs = _inputs(texts)
    with Client(settings_of(redis_url, queue)) as client:
        scores = client.score(
            query,
            inputs,
            truncate=truncate,
            priority=cast(PriorityLike, priority),  # a wrong one is refused with the rest
            timeout_s=timeout,
        )
    ranking = sorted(range(len(inputs)), key=lambda index: -scores[index])
    for index in ranking[:top]:
        if as_json:
            print_json({"index": index, "score": scores[index], "text": inputs[index]})
        else:
            print_text(f"{scores[index]:.6f}\t{printable(inputs[index])}")


def _inputs(texts: Sequence[str] | None) -> list[str]:
    """Raises: InvalidParameter"""
    if texts:
        return list(texts)
    if sys.stdin is not None and sys.stdin.isatty():
        raise InvalidParameter("give texts, or lines on stdin")
    lines = [line for line in read_stdin().splitlines() if line.strip()]
    if not lines:
        raise InvalidParameter("there is no text: give some, or lines on stdin")
    return lines
