"""The parts that tokens bring, and how many of the tokens are thoughts."""

from rose.formats.parts import Parser, Part, joined
from rose.protocol import TokenEvent


class TokenParser:
    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self.thought_tokens = 0
        self.are_thoughts: list[bool] = []
        """of each token of the last event"""

    def feed(self, event: TokenEvent) -> list[Part]:
        parts: list[Part] = []
        self.are_thoughts = []
        for token in event.single_tokens():
            thought = self._parser.thinking
            parts += self._parser.feed(token.text)
            self.are_thoughts.append(thought or self._parser.thinking)
        self.thought_tokens += sum(self.are_thoughts)
        return joined(parts) if len(self.are_thoughts) > 1 else parts

    def finish(self, *, cut: bool) -> list[Part]:
        return self._parser.finish(cut=cut)
