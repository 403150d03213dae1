"""What tokens are called: their bytes, as workers announce them."""

from typing import Any, NamedTuple


class TokenName(NamedTuple):
    token: str
    bytes: list[int] | None


class Vocabulary:
    """The tokens' bytes by their ids. An id that is not known is called by its number."""

    def __init__(self, tokens: list[bytes] | tuple[bytes, ...] = ()) -> None:
        self._tokens = tokens
        self._names: dict[int, TokenName] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def name(self, token_id: int) -> TokenName:
        """A part of a character has its bytes as escapes."""
        known = self._names.get(token_id)
        if known is None:
            known = self._names[token_id] = self._name(token_id)
        return known

    def text(self, token_ids: list[int]) -> str | None:
        """What the tokens say; None if one of them is not known."""
        if not all(token_id < len(self._tokens) for token_id in token_ids):
            return None
        return b"".join(self._tokens[token_id] for token_id in token_ids).decode(errors="replace")

    def _name(self, token_id: int) -> TokenName:
        if token_id >= len(self._tokens):
            return TokenName(f"token_id:{token_id}", None)
        raw = self._tokens[token_id]
        return TokenName(raw.decode(errors="backslashreplace"), list(raw))


def chat_logprob(vocabulary: Vocabulary, token_id: int, logprob: Any) -> dict[str, Any]:
    """A token as chat completions show it; `logprob` is a `TokenLogprob`."""
    name = vocabulary.name(token_id)
    return {
        "token": name.token,
        "bytes": name.bytes,
        "logprob": logprob.logprob,
        "top_logprobs": [
            {
                "token": vocabulary.name(top_id).token,
                "bytes": vocabulary.name(top_id).bytes,
                "logprob": top,
            }
            for top_id, top in logprob.top
        ],
    }
