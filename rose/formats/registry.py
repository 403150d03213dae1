"""The formats by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from rose.formats.call_parser import CallFormat, CallsParser
from rose.formats.parts import Parser, TextParser
from rose.formats.thoughts import ThoughtFormat, ThoughtParser


class ToolFormat(NamedTuple):
    """How a family writes calls."""

    form: CallFormat

    @property
    def end(self) -> str:
        """A text that ends each call and stands nowhere else; "" if there is none."""
        return self.form.close

    @property
    def tags(self) -> tuple[str, ...]:
        """What a parser must see, special token or not."""
        return self.form.tags or ()

    def parser(self, names: frozenset[str]) -> Parser:
        return CallsParser(names, self.form)


TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": ToolFormat(CallFormat("arguments", ("<tool_call>", "</tool_call>"))),
        "llama3_json": ToolFormat(CallFormat("parameters", separator=";")),
    }
)

REASONING_FORMATS: Mapping[str, ThoughtFormat] = MappingProxyType(
    {"think": ThoughtFormat("<think>", "</think>")}
)


def parser_of(rest: Parser | None, reasoning_format: str) -> Parser:
    """`rest`: reads what are no thoughts. A format that is not known has none."""
    rest = rest or TextParser()
    form = REASONING_FORMATS.get(reasoning_format)
    return rest if form is None else ThoughtParser(form, rest)


def shown_special(tool_format: str, reasoning_format: str) -> tuple[str, ...]:
    """The tags that the parsers of an answer must see, where they are special tokens."""
    tags: list[str] = []
    if form := TOOL_FORMATS.get(tool_format):
        tags += form.tags
    if thoughts := REASONING_FORMATS.get(reasoning_format):
        tags += (thoughts.open, thoughts.close)
    return tuple(dict.fromkeys(tags))


def shown_prompt_end(reasoning_format: str) -> tuple[str, ...]:
    """Ends of a prompt that belong to the answer: the opening of a thought."""
    form = REASONING_FORMATS.get(reasoning_format)
    return () if form is None else (form.open,)
