"""DeepSeek V3 and R1, and V3.1.

V3, R1  <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
        ```json
        {"place": "Oslo"}
        ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
V3.1    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{...}<｜tool▁call▁end｜>...
"""

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import Callee, CallGrammar
from rose.formats.call_reading import CallReader
from rose.formats.reading import Reading

SEPARATOR = "<｜tool▁sep｜>"


class DeepSeekReader(CallReader):
    openings = ("<｜tool▁call▁begin｜>",)
    dropped = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
    are_special = True

    def call(self, tag: str) -> Reading[bool]:  # noqa: ARG002
        name = yield from self.word(SEPARATOR)
        if name is None:
            return False
        self.take(len(SEPARATOR))
        yield from self.skip_space()
        if name.strip() == "function" and not (yield from self.at("{")):
            name = yield from self.word("\n")
            yield from self.skip_space()
            yield from self.took("```json")
            yield from self.skip_space()
            if name is None or not (yield from self.json_arguments(name.strip())):
                return False
            yield from self.skip_space()
            yield from self.took("```")
            return True
        return (yield from self.json_arguments(name.strip()))


def grammar(g: CallGrammar) -> tuple[str, ...]:
    """Both notations: the model knows which one is its own."""
    separator = g.tag(SEPARATOR)

    def write(callee: Callee, name: str) -> str:
        arguments, own = g.arguments(callee, name), quoted(callee.name)
        old = f'"function" {separator} {own} "\\n```json\\n" {arguments} "\\n```"'
        return f"{own} {separator} {arguments} | {old}"

    opening, close = g.tag("<｜tool▁call▁begin｜>"), g.tag("<｜tool▁call▁end｜>")
    g.rule("start", f"{opening} {g.call(write)} {close}")
    return ("<｜tool▁call▁begin｜>",)
