"""gpt-oss: messages in channels. The prompt ends with <|start|>assistant.

<|channel|>analysis<|message|>Hm.<|end|>
<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json
<|message|>{...}<|call|>
<|start|>assistant<|channel|>final<|message|>It rains.<|return|>

`analysis` is a thought, `commentary` without a recipient and `final` are text.
"""

import re

from rose.formats.argument_types import quoted
from rose.formats.call_grammar import Callee, CallGrammar
from rose.formats.call_reading import CallReader
from rose.formats.parts import CallCut, Parser, Part, Text, Thought
from rose.formats.reading import Give, Reading

_HEAD_ENDS = ("<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>")
_BODY_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
#: Around a thought before a final text.
THOUGHT_TAGS = (
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
)
#: Between two texts of one answer.
_BREAK = "\n\n"
_MAX_HEAD = 512


class HarmonyReader(CallReader):
    openings = ("<|start|>", "<|channel|>")
    dropped = ("<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
    are_special = True

    def read(self) -> Reading[None]:
        self._said = False
        # An answer that has no head is a text.
        if not (yield from self.at(*self.openings, " to=", "to=", *self.dropped)):
            yield from self._text()
        while (yield from self.some()):
            yield from self._message()

    def _message(self) -> Reading[None]:
        head = yield from self._head()
        if head is None:
            return
        recipient = _RECIPIENT.search(head)
        channel = _CHANNEL.search(head)
        if recipient is not None and recipient[1] in self.names:
            yield from self._called(recipient[1])
        elif channel is not None and channel[1] == "analysis":
            self.thinking = True
            yield from self.skip_space()
            yield from self._body(lambda text: self.parts.append(Thought(text)))
        else:
            yield from self._text()

    def _head(self) -> Reading[str | None]:
        """What stands before a message's body; None where there is none."""
        head: list[str] = []
        while (tag := (yield from self.until(_HEAD_ENDS, head.append, space=""))) == "<|start|>":
            head.clear()
        text = "".join(head)
        if tag == "<|message|>" and len(text) <= _MAX_HEAD:
            return text
        if not tag and self.cut and "to=" in text:
            self.parts.append(CallCut())
        return None

    def _text(self) -> Reading[None]:
        between = _BREAK if self._said else ""

        def say(text: str) -> None:
            nonlocal between
            self.parts.append(Text(between + text))
            between, self._said = "", True

        yield from self._body(say)

    def _called(self, name: str) -> Reading[None]:
        self.begin(name)
        yield from self.skip_space()
        if (yield from self.at("{")):
            complete = yield from self.json_value(self.argue)
        else:
            self.argue("{}")
            complete = not self.cut
        self.end(complete=complete)
        yield from self._body(lambda _: None)

    def _body(self, give: Give) -> Reading[None]:
        tag = yield from self.until(_BODY_ENDS, give)
        self.thinking = False
        if tag in self.openings:
            self.buffer = tag + self.buffer


class ChannelParser:
    """Thoughts, and what another parser makes of the text."""

    def __init__(self, rest: Parser) -> None:
        self._channels = HarmonyReader(frozenset())
        self._rest = rest

    @property
    def thinking(self) -> bool:
        return self._channels.thinking

    def feed(self, text: str) -> list[Part]:
        return self._read(self._channels.feed(text))

    def finish(self, *, cut: bool) -> list[Part]:
        return self._read(self._channels.finish(cut=cut)) + self._rest.finish(cut=cut)

    def _read(self, parts: list[Part]) -> list[Part]:
        made: list[Part] = []
        for part in parts:
            made += self._rest.feed(part.text) if isinstance(part, Text) else [part]
        return made


def grammar(g: CallGrammar) -> tuple[str, ...]:
    """Of heads, and of the bodies of calls: a body that is no call is free."""
    start, channel, message = map(g.tag, ("<|start|>", "<|channel|>", "<|message|>"))
    kind = f'(" "? {g.tag("<|constrain|>")}? "json")?'

    def write(callee: Callee, name: str) -> str:
        to = quoted(f"to=functions.{callee.name}")
        arguments = f"{kind} {message} {g.arguments(callee, name)} {g.tag('<|call|>')}"
        in_role = f'" "? {to} {channel} "commentary" {arguments}'
        return f'{in_role} | {channel} "commentary " {to} {arguments}'

    call = g.call(write)
    other = f'{channel} ("analysis" | "commentary" | "final" {kind}) {message}'
    g.rule("head", f"{call} | {other}")
    g.rule("start", f'head | {g.tag("<|end|>")}? {start} "assistant" head | {g.tag("<|end|>")}')
    return ("^", "<|start|>", "<|channel|>", "<|end|>")
