"""Mistral's models, with their older and their newer tokens.

[TOOL_CALLS] [{"name": "weather", "arguments": {"place": "Oslo"}}]
[TOOL_CALLS]weather[ARGS]{"place": "Oslo"}[TOOL_CALLS]weather[ARGS]{...}
[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{"place": "Oslo"}
"""

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import CallGrammar
from rose.formats.call_reading import CallReader
from rose.formats.reading import Reading


class MistralReader(CallReader):
    openings = ("[TOOL_CALLS]",)
    dropped = ("[/TOOL_CALLS]",)
    are_special = True

    def call(self, tag: str) -> Reading[bool]:  # noqa: ARG002
        yield from self.skip_space()
        if (yield from self.at("[{", "[ ", "[\n", "[]", '{"')):
            return (yield from self.json_calls("name", ("arguments", "parameters")))
        name = yield from self.word("[ARGS]", "[CALL_ID]", "{")
        if name is None:
            return False
        if (yield from self.took("[CALL_ID]")):
            yield from self.word("[ARGS]")
        yield from self.took("[ARGS]")
        yield from self.skip_space()
        return (yield from self.json_arguments(name.strip()))


def grammar(g: CallGrammar) -> tuple[str, ...]:
    """Both notations: the model knows which one is its own."""
    identity = f"({g.tag('[CALL_ID]')} {g.term('[a-zA-Z0-9_-]{1,64}')})?"

    old = g.object("name", "arguments")
    new = [
        f"{quoted(callee.name)} {identity} {g.tag('[ARGS]')} arguments_{number}"
        for number, callee in enumerate(g.callees)
    ]
    g.rule("start", f"{g.tag('[TOOL_CALLS]')} ({g.term('[ ]?')} {g.list(old)} | {' | '.join(new)})")
    return ("[TOOL_CALLS]",)
