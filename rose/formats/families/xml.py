"""Families that write each argument as text between tags. Its type is that of the schema.

qwen3_xml   <tool_call>\\n<function=weather>\\n<parameter=place>\\nOslo\\n</parameter>\\n
            </function>\\n</tool_call>
glm45       <tool_call>weather\\n<arg_key>place</arg_key>\\n<arg_value>Oslo</arg_value>\\n
            </tool_call>
minimax_m2  <minimax:tool_call>\\n<invoke name="weather">\\n<parameter name="place">Oslo
            </parameter>\\n</invoke>\\n</minimax:tool_call>
"""

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import Callee, CallGrammar, Field
from rose.formats.call_reading import CallReader
from rose.formats.reading import Reading


class QwenXmlReader(CallReader):
    openings = ("<tool_call>", "<function=")
    dropped = ("<seed:tool_call>", "</seed:tool_call>")

    def call(self, tag: str) -> Reading[bool]:
        if tag == "<tool_call>":
            yield from self.skip_space()
            if not (yield from self.took("<function=")):
                return False
        name = yield from self.word(">")
        if name is None or name not in self.names:
            return False
        self.take(1)
        self.begin(name)
        if not (yield from self._parameters(name)):
            return True
        yield from self.skip_space()
        yield from self.took("</tool_call>")
        return True

    def _parameters(self, name: str) -> Reading[bool]:
        number = 0
        while True:
            yield from self.skip_space()
            tag = yield from self.took("<parameter=", "</function>", "</tool_call>")
            if tag != "<parameter=":
                self.end_arguments(number, complete=bool(tag) or (self.ended and not self.cut))
                return tag == "</function>"
            key = yield from self.word(">")
            self.take(1)
            close = "</parameter>"
            if key is None or not (
                yield from self.argument(name, key, close, number=number, space="\n")
            ):
                self.end(complete=False)
                return False
            number += 1


class GlmReader(CallReader):
    openings = ("<tool_call>",)

    def call(self, tag: str) -> Reading[bool]:
        yield from self.skip_space()
        name = yield from self.word("<", "\n")
        if name is None or (name := name.strip()) not in self.names:
            return False
        self.begin(name)
        number = 0
        while True:
            yield from self.skip_space()
            tag = yield from self.took("<arg_key>", "</tool_call>")
            if tag != "<arg_key>":
                self.end_arguments(number, complete=bool(tag) or (self.ended and not self.cut))
                return True
            key = yield from self.word("</arg_key>")
            self.take(len("</arg_key>"))
            yield from self.skip_space()
            if (
                key is None
                or not (yield from self.took("<arg_value>"))
                or not (
                    yield from self.argument(
                        name, key.strip(), "</arg_value>", number=number, space=""
                    )
                )
            ):
                self.end(complete=False)
                return True
            number += 1


class MiniMaxReader(CallReader):
    openings = ("<invoke name=",)
    dropped = ("<minimax:tool_call>", "</minimax:tool_call>")

    def call(self, tag: str) -> Reading[bool]:
        name = yield from self.word(">")
        if name is None or (name := name.strip(" \"'")) not in self.names:
            return False
        self.take(1)
        self.begin(name)
        number = 0
        while True:
            yield from self.skip_space()
            tag = yield from self.took("<parameter name=", "</invoke>", "</minimax:tool_call>")
            if tag != "<parameter name=":
                self.end_arguments(number, complete=bool(tag) or (self.ended and not self.cut))
                return True
            key = yield from self.word(">")
            self.take(1)
            if key is None or not (
                yield from self.argument(
                    name, key.strip(" \"'"), "</parameter>", number=number, space=""
                )
            ):
                self.end(complete=False)
                return True
            number += 1


def qwen_grammar(g: CallGrammar) -> tuple[str, ...]:
    line = g.term("[\\n]?")

    def argument(name: str, field: Field) -> str:
        text = g.text_value(field, "\n</parameter>")
        return f'"<parameter=" {name} ">\\n" {text} {line}'

    def write(callee: Callee, _: str) -> str:
        return f'{quoted(callee.name + ">")} {line} {g.parameters(callee, argument)} "</function>"'

    call = g.call(write)
    opening, close = g.tag("<tool_call>"), g.tag("</tool_call>")
    g.rule("start", f'({opening} {line})? "<function=" {call} {line} {close}')
    return ("<tool_call>", "<function=")


def glm_grammar(g: CallGrammar) -> tuple[str, ...]:
    line = g.term("[\\n]?")
    tags = [g.tag(tag) for tag in ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")]
    key, key_end, opening, _ = tags

    def argument(name: str, field: Field) -> str:
        text = g.text_value(field, "</arg_value>")
        return f"{key} {name} {key_end} {line} {opening} {text} {line}"

    def write(callee: Callee, _: str) -> str:
        return f"{quoted(callee.name)} {line} {g.parameters(callee, argument)}"

    call = g.call(write)
    g.rule("start", f"{g.tag('<tool_call>')} {line} {call} {g.tag('</tool_call>')}")
    return ("<tool_call>",)


def minimax_grammar(g: CallGrammar) -> tuple[str, ...]:
    line = g.term("[\\n]?")

    def argument(name: str, field: Field) -> str:
        text = g.text_value(field, "</parameter>")
        return f'"<parameter name=\\"" {name} "\\">" {text} {line}'

    def write(callee: Callee, _: str) -> str:
        arguments = g.parameters(callee, argument)
        return f'{quoted(callee.name)} "\\">" {line} {arguments} "</invoke>"'

    g.rule("start", f'"<invoke name=" "\\"" {g.call(write)}')
    return ("<invoke name=",)
