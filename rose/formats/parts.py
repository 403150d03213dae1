"""The parts of a model's answer, and what makes them.

A parser is a pure function of the text: wherever it is cut, the parts are the same once neighbours
of one kind are joined.
"""

from typing import Any, NamedTuple, Protocol


class Text(NamedTuple):
    text: str


class Thought(NamedTuple):
    """More of what the model thinks before it answers."""

    text: str


class CallBegun(NamedTuple):
    number: int
    """the number of the call in this output"""
    name: str


class Arguments(NamedTuple):
    """More of the arguments' JSON text."""

    number: int
    text: str


class CallEnded(NamedTuple):
    number: int
    complete: bool
    """False where the output ended within the arguments"""


class CallCut(NamedTuple):
    """The output was cut off within a call, before its arguments."""


Part = Text | Thought | CallBegun | Arguments | CallEnded | CallCut


class Parser(Protocol):
    @property
    def thinking(self) -> bool:
        """Whether the text so far ends within a thought."""

    def feed(self, text: str) -> list[Part]:
        """What is certain after more of the output."""

    def finish(self, *, cut: bool) -> list[Part]:
        """What is left when the output has ended. Nothing may be fed afterwards. `cut`: it was
        ended by a limit or a stop, and not by the model."""


class TextParser:
    """For output without calls."""

    thinking = False

    def feed(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def finish(self, *, cut: bool) -> list[Part]:  # noqa: ARG002
        return []


def joined(parts: list[Part]) -> list[Part]:
    """With neighbours of one kind as one part."""
    made: list[Part] = []
    for part in parts:
        last: Any = made[-1] if made else None
        if isinstance(part, Text | Thought) and type(part) is type(last):
            made[-1] = type(part)(last.text + part.text)
        elif (
            isinstance(part, Arguments)
            and isinstance(last, Arguments)
            and part.number == last.number
        ):
            made[-1] = Arguments(part.number, last.text + part.text)
        else:
            made.append(part)
    return made
