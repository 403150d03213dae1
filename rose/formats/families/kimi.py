"""Kimi K2.

<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{...}
<|tool_call_end|><|tool_calls_section_end|>
"""

from collections.abc import Mapping, Sequence
from typing import Any

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


def with_own_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a job, with the ids of calls as the model writes them: its templates show an
    id where the name of the function is to be read."""
    own: dict[str, str] = {}
    made: list[dict[str, Any]] = []
    for message in messages:
        fields = dict(message)
        if calls := message.get("tool_calls"):
            for call in calls:
                own[call["id"]] = f"functions.{call['function']['name']}:{len(own)}"
            fields["tool_calls"] = [{**call, "id": own[call["id"]]} for call in calls]
        if identity := message.get("tool_call_id"):
            fields["tool_call_id"] = own.get(identity, identity)
        made.append(fields)
    return made


def grammar(g: CallGrammar) -> tuple[str, ...]:
    number, middle = g.term("[0-9]{1,3}"), g.tag(_ARGUMENTS)

    def write(callee: Callee, arguments: str) -> str:
        own = quoted(f"functions.{callee.name}:")
        return f"{own} {number} {middle} {g.arguments(callee, arguments)}"

    call = g.call(write)
    g.rule("start", f"{g.tag('<|tool_call_begin|>')} {call} {g.tag('<|tool_call_end|>')}")
    return ("<|tool_call_begin|>",)
