"""Speculative decoding: a session's next tokens are drafted, and verified in one step.

A step that decodes reads all weights for one token of each session; some more rows cost it little.
So the rows behind a session's last token hold drafts. A token is a function of its own logits, the
request's parameters and its position, and logits do not depend on what is computed beside them.
Whoever samples from the first row gets the next token; if that is the first draft, the second row
has the logits behind it, and so on. The tokens are those that would have come one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from roseinfer.kv_cache.block_pool import BlockPool
from roseinfer.sampling.sampler import SampledToken
from roseinfer.scheduling.prefill_pace import StepCosts, StepSize
from roseinfer.sessions.session import Chunk, InferenceSession

MAX_DRAFTS = 16  # of a session in a step

# A draft less likely to be accepted than this is not worth its row, whatever was measured.
_MIN_PROBABILITY = 0.15


class Speculation:
    """Gives decoding sessions the drafts that make the time for a token shorter.

    A draft is worth its row if the tokens that a step is expected to bring for each of its seconds
    become no fewer. A draft's acceptance rate is the session's own, and the seconds follow from the
    steps that were measured. So a batch that keeps the processor busy gets few or none.
    """

    def __init__(self, costs: StepCosts, pool: BlockPool) -> None:
        self.drafted = 0
        self._costs, self._pool = costs, pool

    def chunks(self, decoding: Sequence[InferenceSession], budget: int) -> list[Chunk]:
        """The next token of each session, with drafts behind it where they pay: at most `budget`
        of them, in blocks that are free."""
        drafting = [s for s in decoding if s.lookup.update(s.tokens)]
        if not drafting:
            return [Chunk(session, 1) for session in decoding]
        counts = self._draft_counts(drafting, decoding, budget)
        return [self._chunk(session, counts[session]) for session in decoding]

    def _draft_counts(
        self,
        drafting: Sequence[InferenceSession],
        decoding: Sequence[InferenceSession],
        budget: int,
    ) -> Counter[InferenceSession]:
        """How many drafts each session gets: the likeliest ones first, while they pay."""
        costs = self._costs.usual()
        pairs = sum(session.num_known for session in decoding)
        tokens, seconds = float(len(decoding)), costs.of(StepSize(len(decoding), pairs))
        counts = Counter[InferenceSession]()
        for draft in sorted(self._drafts(drafting), key=_probability, reverse=True)[:budget]:
            added = costs.of_tokens(1, draft.session.computed)
            if draft.probability * seconds <= added * tokens:
                break
            tokens, seconds = tokens + draft.probability, seconds + added
            counts[draft.session] += 1
        return counts

    def _drafts(self, drafting: Sequence[InferenceSession]) -> Iterator[_Draft]:
        """Those of each session in their order: none is likelier than the one before it."""
        for session in drafting:
            most = min(MAX_DRAFTS, session.tokens_left - 1)
            for probability in session.lookup.acceptance(most, least=_MIN_PROBABILITY):
                yield _Draft(session, probability)

    def _chunk(self, session: InferenceSession, count: int) -> Chunk:
        if count:
            count = self._with_blocks(session, count)
        drafts = session.lookup.draft(session.tokens, count)
        self.drafted += count
        return Chunk(session, 1 + count, drafts)

    def _with_blocks(self, session: InferenceSession, count: int) -> int:
        """Take blocks and states for `count` drafts; returns for how many there are some."""
        size = self._pool.block_size
        wanted = session.blocks_wanted(session.num_known + count, size)
        session.blocks += self._pool.allocate(min(wanted, self._pool.available))
        count = min(count, len(session.blocks) * size - session.num_known)
        return session.state.take_drafts(self._pool, count)


class _Draft(NamedTuple):
    session: InferenceSession
    probability: float
    """that it and those before it are accepted"""


def _probability(draft: _Draft) -> float:
    return draft.probability


def accept(chunk: Chunk, tokens: Iterator[SampledToken]) -> tuple[list[SampledToken], list[str]]:
    """Append to the chunk's session the next of `tokens`, and as many more as drafts are accepted.
    Returns those that the session took, and the text of each.

    Each token is asked for when the ones before it are in the session.
    """
    session, known = chunk.session, len(chunk.session.tokens)
    taken, texts, drafts = list[SampledToken](), list[str](), chunk.drafts
    for token in tokens:
        text = session.append(token.token_id)
        if len(session.tokens) == known + len(taken):
            break  # it was not taken: the request ends with an error
        taken.append(token)
        texts.append(text)
        count = len(taken)
        if session.finish_reason or count > len(drafts) or drafts[count - 1] != token.token_id:
            break
    return taken, texts
