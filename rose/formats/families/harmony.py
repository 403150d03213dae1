"""gpt-oss: messages in channels. The prompt ends with <|start|>assistant.

<|channel|>analysis<|message|>Hm.<|end|>
<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json
<|message|>{...}<|call|>
<|start|>assistant<|channel|>final<|message|>It rains.<|return|>

`analysis` is a thought, `commentary` without a recipient and `final` are text.
"""

import re

from rose.formats.call_reading import CallReader
from rose.formats.parts import CallCut, Text, Thought
from rose.formats.reading import Give, Reading

_HEAD_ENDS = ("<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>")
_BODY_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
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
