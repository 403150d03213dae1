"""What a step computes of a session, and tokens that only the device has yet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.sessions.session import InferenceSession

_NO_TOKENS = range(0)


class Chunk:
    """The next `count` tokens of a session whose KV is to be computed in this step.

    The last of them may be `drafts` of what comes behind the session's known tokens. Then
    the logits of the last known token and of each draft are wanted.

    It is made for the session as it is, and is of use until a step has computed it. `end` is how
    many tokens are computed then. `is_last`: that reaches the last known token, so that the next
    can be sampled. `scored` are the prompt's tokens that the step scores: the row before each has
    its logits. So its last `logit_rows` rows have logits, and from those of the last `sampled_rows`
    tokens are sampled.
    """

    __slots__ = (
        *("session", "count", "drafts", "end"),
        *("is_last", "scored", "sampled_rows", "logit_rows"),
    )

    def __init__(self, session: InferenceSession, count: int, drafts: tuple[int, ...] = ()) -> None:
        self.session, self.count, self.drafts = session, count, drafts
        self.end = session.computed + count
        self.is_last = self.end - len(drafts) == session.num_known
        self.scored = _scored(session, self.end) if session.lacks_scores else _NO_TOKENS
        self.sampled_rows = 1 + len(drafts) if self.is_last else 0
        self.logit_rows = len(self.scored) + self.sampled_rows

    def input_ids(self, device_tokens: DeviceTokens | None) -> list[int]:
        """Its tokens; one that only the device knows has a placeholder of `device_tokens`."""
        ids = self.session.tokens[self.session.computed : self.end]
        ids += self.drafts
        if len(ids) < self.count:
            if device_tokens is None:
                raise RuntimeError("a step needs a token that has not come back from the device")
            ids.append(device_tokens.placeholder(self.session))
        return ids


def _scored(session: InferenceSession, end: int) -> range:
    first = max(session.computed + 1, session.num_scored)
    return range(first, min(end + 1, session.prompt_length))


@dataclass(frozen=True, slots=True)
class DeviceTokens:
    """Tokens that were sampled on the device and have not reached the host.

    Row `rows[s]` of `ids` [S] is the last token of session s. The host lays out a step with a
    placeholder for each of them, and `fill` replaces it on the device.
    """

    rows: dict[InferenceSession, int]
    ids: Tensor

    def placeholder(self, session: InferenceSession) -> int:
        """A negative number, which no token id is, from which `fill` knows the row."""
        return -(self.rows[session] + 1)

    def fill(self, input_ids: Tensor) -> Tensor:
        """`input_ids` with the tokens in the place of their placeholders. A row without a token
        ends its session: any id will do."""
        rows = (-input_ids - 1).clamp_(min=0)
        return torch.where(input_ids < 0, self.ids[rows].clamp_(min=0), input_ids)
