"""Speculative decoding: a session's next tokens are drafted, and verified in one step.

A step that decodes reads all weights for one token of each session; some more rows cost it little.
So the rows behind a session's last token hold drafts. A token is a function of its own logits, the
request's parameters and its position, and logits do not depend on what is computed beside them.
Whoever samples from the first row gets the next token; if that is the first draft, the second row
has the logits behind it, and so on. The tokens are those that would have come one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from roseinfer.execution.draft_head import DraftHead
from roseinfer.kv_cache.block_pool import BlockPool
from roseinfer.sampling.sampler import SampledToken
from roseinfer.scheduling.prefill_pace import StepCosts, StepSize
from roseinfer.sessions.own_drafts import MAX_OWN_DRAFTS, OwnDrafts
from roseinfer.sessions.session import Chunk, InferenceSession

MAX_DRAFTS = 16  # of a session in a step

_RECENT = 0.2  # what the last pass of a head weighs in the time for one
_MOST = 2.0  # of that time: what one takes more was taken by something else
_FORGOTTEN = 0.005  # of it with each step since: else a slow one would be the last
_FEW = MAX_OWN_DRAFTS + 1  # tokens that a head reads at once, where it drafted for the step before

# A draft less likely to be accepted than this is not worth its row, whatever was measured.
_MIN_PROBABILITY = 0.15


class Speculation:
    """Gives decoding sessions the drafts that make the time for a token shorter.

    They come from the session's text, where it repeats, or from the model's own head, if it has
    one: from that of which the first is likelier to be accepted. A draft is worth its row if the
    tokens that a step is expected to bring for each of its seconds become more. A pass of the head
    makes a draft for each of several sessions, which must be worth it together. A draft's
    acceptance rate is the session's own, and the seconds follow from the steps that were measured.
    So a batch that keeps the processor busy gets few or none.
    """

    def __init__(
        self,
        costs: StepCosts,
        pool: BlockPool,
        head: DraftHead | None,
        clock: Callable[[], float],
    ) -> None:
        self.drafted = 0
        self._costs, self._pool, self._head, self._clock = costs, pool, head, clock
        self._pass_s = 0.0  # what a pass of the head usually takes
        self._steps_without = 0  # since the last one that could have had some

    def begin(self, session: InferenceSession) -> None:
        """Before the session's first step."""
        if self._head is not None:
            session.own_drafts = self._head.begin()

    def chunks(self, decoding: Sequence[InferenceSession], budget: int) -> list[Chunk]:
        """The next token of each session, with drafts behind it where they pay: at most `budget`
        of them, in blocks that are free."""
        drafting = [drafts for session in decoding if (drafts := self._likeliest(session))]
        if not drafting:
            return [Chunk(session, 1) for session in decoding]
        counts = self._draft_counts(drafting, decoding, budget)
        for session in decoding:
            if counts[session]:
                counts[session] = self._with_blocks(session, counts[session])
        own = {drafts.session: drafts.own for drafts in drafting if drafts.own is not None}
        made = self._made_by_head(own, counts)
        for session in decoding:
            if session not in made:
                made[session] = session.lookup.draft(session.tokens, counts[session])
        self.drafted += sum(map(len, made.values()))
        return [Chunk(session, 1 + len(made[session]), made[session]) for session in decoding]

    def _likeliest(self, session: InferenceSession) -> _Drafts | None:
        most, own = min(MAX_DRAFTS, session.tokens_left - 1), session.own_drafts
        found = list[float]()
        if session.lookup.update(session.tokens):
            found = session.lookup.acceptance(most, least=_MIN_PROBABILITY)
        if own is not None and own.is_ready(session.num_known):
            by_head = own.acceptance(min(most, MAX_OWN_DRAFTS), least=_MIN_PROBABILITY)
            if by_head and (not found or by_head[0] > found[0]):
                return _Drafts(session, by_head, own)
            own.skip()
        return _Drafts(session, found) if found else None

    def _draft_counts(
        self,
        drafting: Sequence[_Drafts],
        decoding: Sequence[InferenceSession],
        budget: int,
    ) -> Counter[InferenceSession]:
        """How many drafts each session gets: those first that bring most for their seconds, while
        they pay."""
        costs, counts = self._costs.usual(), Counter[InferenceSession]()
        pass_s = self._pass_s * (1 - _FORGOTTEN) ** self._steps_without
        pairs = sum(session.num_known for session in decoding)
        rate = _Rate(float(len(decoding)), costs.of(StepSize(len(decoding), pairs)))
        each, levels = list[_Draft](), [list[_Draft]() for _ in range(MAX_OWN_DRAFTS)]
        for session, accepted, own in drafting:
            added = costs.of_tokens(1, session.computed)
            drafts = [_Draft(probability, added, session) for probability in accepted]
            if own is None:
                each += drafts
            else:
                for level, draft in zip(levels, drafts, strict=False):
                    level.append(draft)
        # Those of a session stay in their order: none is likelier than the one before it.
        for draft in sorted(each, key=_worth, reverse=True)[:budget]:
            if (more := rate.with_draft(draft)).value <= rate.value:
                break
            rate = more
            counts[draft.session] += 1
        for number, level in enumerate(levels):
            # The head makes all of them in one pass: it is paid once, and by all or by none.
            room = budget - counts.total()
            able = [draft for draft in level if counts[draft.session] == number]
            able.sort(key=_worth, reverse=True)
            passed, best, chosen = _Rate(rate.tokens, rate.seconds + pass_s), rate, 0
            for count, draft in enumerate(able[:room], start=1):
                passed = passed.with_draft(draft)
                if passed.value > best.value:
                    best, chosen = passed, count
            if not chosen:
                break
            rate = best
            for draft in able[:chosen]:
                counts[draft.session] += 1
        return counts

    def _made_by_head(
        self, own: Mapping[InferenceSession, OwnDrafts], counts: Mapping[InferenceSession, int]
    ) -> dict[InferenceSession, tuple[int, ...]]:
        """The drafts of those sessions that get some of the head's."""
        wanted = dict[InferenceSession, int]()
        for session, drafts in own.items():
            if counts[session]:
                wanted[session] = drafts.drafted = counts[session]
            else:
                drafts.skip()
        if self._head is None or not wanted:
            self._steps_without += bool(own)
            return {}
        is_usual = all(own[session].unread <= _FEW for session in wanted)
        self._steps_without, began = 0, self._clock()
        made = self._head.draft(wanted)
        if is_usual:
            took = (self._clock() - began) / max(wanted.values())
            if self._pass_s:
                took = min(took, _MOST * self._pass_s)
            self._pass_s += (took - self._pass_s) * (_RECENT if self._pass_s else 1.0)
        return made

    def _with_blocks(self, session: InferenceSession, count: int) -> int:
        """Take blocks and states for `count` drafts; returns for how many there are some."""
        size = self._pool.block_size
        wanted = session.blocks_wanted(session.num_known + count, size)
        session.blocks += self._pool.allocate(min(wanted, self._pool.available))
        count = min(count, len(session.blocks) * size - session.num_known)
        return session.state.take_drafts(self._pool, count)


class _Drafts(NamedTuple):
    """How likely a session's next 1, 2, ... drafts are all accepted. Those of its `own` are each a
    pass of the head."""

    session: InferenceSession
    accepted: list[float]
    own: OwnDrafts | None = None


class _Draft(NamedTuple):
    """How likely it is to be accepted, the seconds that its row adds to the step, and whose."""

    probability: float
    seconds: float
    session: InferenceSession


class _Rate(NamedTuple):
    """The tokens that a step is expected to bring, and its seconds."""

    tokens: float
    seconds: float

    @property
    def value(self) -> float:
        return self.tokens / max(self.seconds, 1e-12)

    def with_draft(self, draft: _Draft) -> _Rate:
        return _Rate(self.tokens + draft.probability, self.seconds + draft.seconds)


def _worth(draft: _Draft) -> float:
    """Tokens for a second that a draft adds."""
    return draft.probability / max(draft.seconds, 1e-12)


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
