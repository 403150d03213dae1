"""Families that write a call as one JSON object: grammars for what `call_parser` reads.

hermes       <tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>
llama3_json  {"name": "weather", "parameters": {"place": "Oslo"}}
"""

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import Callee, CallGrammar, names_of

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_HEAD = '{"name": "%s", "parameters": '


def hermes_grammar(g: CallGrammar) -> tuple[str, ...]:
    space = g.term("[ \\n]?")
    call = g.object("name", "arguments")
    g.rule("start", f"{g.tag(_OPEN)} {space} {call} {space} {g.tag(_CLOSE)}")
    return (_OPEN,)


def llama3_grammar(g: CallGrammar) -> tuple[str, ...]:
    def write(callee: Callee, arguments: str) -> str:
        number = arguments.rpartition("_")[2]
        begun = g.rule(f"begun_{number}", f'{g.arguments(callee, arguments)} "}}"')
        return f"{quoted(_HEAD % callee.name)} {begun}"

    call = g.call(write)
    between = g.term(r"; ?|[ ]?[\n]")
    more = f"({between} {call})*" if g.parallel else ""
    beginnings = [rf"\{_HEAD % name}" for name in names_of(g.callees)]
    opening = r'\{[ \t\r\n]*"name"[ \t\r\n]*:[ \t\r\n]*"'
    g.rule("start", g.alone(opening, beginnings, more))
    return ('^{"name":"',)
