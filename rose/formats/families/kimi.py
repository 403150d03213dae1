"""Kimi K2.

<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{...}
<|tool_call_end|><|tool_calls_section_end|>
"""

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import Callee, CallGrammar
from rose.formats.call_reading import CallReader
from rose.formats.reading import Reading

_ARGUMENTS = "<|tool_call_argument_begin|>"


class KimiReader(CallReader):
    openings = ("<|tool_call_begin|>",)
    dropped = (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_end|>",
    )
    are_special = True

    def call(self, tag: str) -> Reading[bool]:  # noqa: ARG002
        identity = yield from self.word(_ARGUMENTS)
        if identity is None:
            return False
        self.take(len(_ARGUMENTS))
        yield from self.skip_space()
        return (yield from self.json_arguments(_name_of(identity.strip())))


def _name_of(identity: str) -> str:
    """Of functions.NAME:NUMBER."""
    name, colon, number = identity.rpartition(":")
    return (name if colon and number.isdecimal() else identity).removeprefix("functions.")


def grammar(g: CallGrammar) -> tuple[str, ...]:
    number, middle = g.term("[0-9]{1,3}"), g.tag(_ARGUMENTS)

    def write(callee: Callee, arguments: str) -> str:
        own = quoted(f"functions.{callee.name}:")
        return f"{own} {number} {middle} {g.arguments(callee, arguments)}"

    call = g.call(write)
    g.rule("start", f"{g.tag('<|tool_call_begin|>')} {call} {g.tag('<|tool_call_end|>')}")
    return ("<|tool_call_begin|>",)
