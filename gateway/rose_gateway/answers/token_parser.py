"""The parts that tokens bring, and how many of the tokens are thoughts."""

from rose.formats.parts import Parser, Part
from rose.protocol import TokenEvent


class TokenParser:
    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self.thought_tokens = 0

    def feed(self, event: TokenEvent) -> list[Part]:
        parts: list[Part] = []
        for token in event.single_tokens():
            thought = self._parser.thinking
            parts += self._parser.feed(token.text)
            self.thought_tokens += thought or self._parser.thinking
        return parts

    def finish(self, *, cut: bool) -> list[Part]:
        return self._parser.finish(cut=cut)
