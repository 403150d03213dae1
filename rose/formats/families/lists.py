"""Families that write calls as a list of JSON objects behind a tag.

granite      <|tool_call|>[{"name": "weather", "arguments": {"place": "Oslo"}}]
phi4         <|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>, or functools[...]
command_r    <|START_ACTION|>[{"tool_name": "weather", "parameters": {...}}]<|END_ACTION|>
"""

from typing import ClassVar

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import CallGrammar
from rose.formats.call_reading import CallReader
from rose.formats.reading import Reading

_WRITTEN_ACTIONS = ("Action: ```json", "Action:\n```json", "Action:```json")


class GraniteReader(CallReader):
    openings: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<tool_call>")
    dropped: ClassVar[tuple[str, ...]] = ("</tool_call>",)
    name_key: ClassVar[str] = "name"

    def call(self, tag: str) -> Reading[bool]:  # noqa: ARG002
        yield from self.skip_space()
        return (yield from self.json_calls(self.name_key, ("arguments", "parameters")))


class Phi4Reader(GraniteReader):
    openings = ("<|tool_call|>", "functools[")
    dropped = ("<|/tool_call|>",)

    def call(self, tag: str) -> Reading[bool]:
        if tag.endswith("["):  # which the list begins with
            self.buffer = "[" + self.buffer
            self.raw = [tag[:-1]]
        return (yield from super().call(tag))


class CommandReader(GraniteReader):
    openings = ("<|START_ACTION|>", "Action:")
    dropped = ("<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
    name_key = "tool_name"

    def call(self, tag: str) -> Reading[bool]:
        if tag == "<|START_ACTION|>":
            return (yield from super().call(tag))
        yield from self.skip_space()
        if not (yield from self.took("```json")) or not (yield from super().call(tag)):
            return False
        yield from self.skip_space()
        yield from self.took("```")
        return True


def granite_grammar(g: CallGrammar) -> tuple[str, ...]:
    opening = " | ".join(map(g.tag, GraniteReader.openings))
    calls = g.list(g.object("name", "arguments"))
    g.rule("start", f"({opening}) {g.term('[ ]?')} {calls}")
    return GraniteReader.openings


def phi4_grammar(g: CallGrammar) -> tuple[str, ...]:
    calls = g.list(g.object("name", "arguments"))
    g.rule("start", f'({g.tag("<|tool_call|>")} | "functools") {calls}')
    return Phi4Reader.openings


def command_grammar(g: CallGrammar) -> tuple[str, ...]:
    """The words `Action:` may also be text: only with its block of JSON does a call begin."""
    space = g.term("[ \\n]{0,24}")
    identity = f'("\\"tool_call_id\\": \\"" {g.term("[0-9]{1,3}")} "\\"," {space})?'
    call = g.object("tool_name", "parameters", before=f"{space} {identity}", after=space)
    calls = g.list(call, space=space)
    action = f"{g.tag('<|START_ACTION|>')} {space} {calls} {space} {g.tag('<|END_ACTION|>')}"
    written = " | ".join(map(quoted, _WRITTEN_ACTIONS))
    g.rule("start", f'{action} | ({written}) {space} {calls} {space} "```"')
    return ("<|START_ACTION|>", *_WRITTEN_ACTIONS)
