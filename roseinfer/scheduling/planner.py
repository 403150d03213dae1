"""Which sessions compute how many tokens in each step.

Every running session has known tokens, of which the first ones are computed. A step computes more
of them, within one budget of tokens for all sessions. Prefill, chunked prefill, decode, a prefix
found in the cache, recomputation after preemption and resuming after a crash differ in nothing
else.

`running` followed by `waiting` is always in the order of arrival. So the youngest running session
is the last one, and it is preempted when blocks run out.
"""

import time
from collections import deque
from collections.abc import Iterable

from roseinfer.kv_cache.block_pool import BlockPool
from roseinfer.scheduling.prefill_pace import PrefillPace
from roseinfer.scheduling.speculation import Speculation
from roseinfer.sessions.session import Chunk, InferenceSession

#: Fewer tokens in common than these are computed again, not waited for.
_LEAST_SHARED = 64
#: Of a step that begins with sessions from the second tier; the last of them may take longer.
_MOST_LOADING_S = 0.05


class Planner:
    """The sessions that are waiting or running, and the blocks of those that run."""

    def __init__(
        self,
        pool: BlockPool,
        pace: PrefillPace,
        speculation: Speculation | None,
        max_batch_size: int,
        max_step_tokens: int,
    ) -> None:
        self.max_batch_size = max_batch_size
        self.max_step_tokens = max(max_step_tokens, max_batch_size)
        self.waiting: deque[InferenceSession] = deque()
        self.running: list[InferenceSession] = []
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self._pool, self._pace, self._speculation = pool, pace, speculation

    def remove(self, session: InferenceSession) -> None:
        """Forget one that is running or waiting; its blocks are the caller's to release."""
        if session in self.running:
            self.running.remove(session)
        else:
            self.waiting.remove(session)

    def drop_finished(self) -> None:
        self.running = [session for session in self.running if not session.finished]

    def plan(self) -> list[Chunk]:
        """A step's chunks: one token for each decoding session, perhaps with drafts, then prefill,
        oldest first. In a burst of prompts some sessions that could decode are held back."""
        self._allocate_blocks()
        self._admit()
        prefilling, ready, decoding = (list[InferenceSession]() for _ in range(3))
        for session in self.running:
            known = len(session.tokens) + session.ahead
            if known >= session.waits_from and session.waits:
                decoding.append(session)
            elif known - session.computed > 1:
                prefilling.append(session)
            else:
                decoding.append(session)
                ready.append(session)
        turn = self._pace.turn(prefilling, decoding)
        chunks = self._decode([s for s in ready if s not in turn.held] if turn.held else ready)
        budget = self.max_step_tokens - sum([chunk.count for chunk in chunks])
        if turn.paced:
            return chunks + self._pace.chunks(turn.prefilling, decoding, budget)
        return chunks + self._pace.together(turn.prefilling, budget)

    def _decode(self, sessions: list[InferenceSession]) -> list[Chunk]:
        """Drafts take at most half of what is left of the step: the rest is for prefill."""
        if self._speculation is None:
            return [session.next_token() for session in sessions]
        return self._speculation.chunks(sessions, (self.max_step_tokens - len(sessions)) // 2)

    def plan_alone(
        self, session: InferenceSession, arrivals: Iterable[InferenceSession]
    ) -> list[Chunk]:
        """As much of one session as a step holds; it is admitted before its turn if need be.

        `arrivals` are all sessions in the order in which they arrived.
        """
        if session.finished:
            return []
        is_new = session not in self.running
        if not is_new:
            self.running.remove(session)
        else:
            while self.running and not self._pool.states.has_room:
                self._preempt_youngest()
            if not self._pool.states.has_room:  # another scheduler holds the cache: later
                return []
            self.waiting.remove(session)
            session.reuse_prefix(self._pool)
        wanted = session.blocks_wanted(session.num_known, self._pool.block_size)
        while self.running and (
            wanted > self._pool.available or len(self.running) == self._capacity
        ):
            self._preempt_youngest()
        if wanted > self._pool.available:  # another scheduler holds the cache: later
            session.release_blocks(self._pool)
            self.waiting.appendleft(session)
            return []
        session.blocks += self._pool.allocate(wanted)
        if is_new:
            session.load_prefix(self._pool)
            session.admissions += 1
        arrival = {known: n for n, known in enumerate(arrivals)}
        self.running = sorted([*self.running, session], key=arrival.__getitem__)
        return [Chunk(session, min(session.num_pending, self.max_step_tokens))]

    def shrink(self, tokens: int) -> None:
        """Steps of at most `tokens` tokens from now on, and at most as many running sessions."""
        self.max_step_tokens = tokens
        while len(self.running) > tokens:
            self._preempt_youngest()

    def _admit(self) -> None:
        """Move waiting sessions into the batch, in order, while place, blocks and a state are free.

        A session gets blocks for all its known tokens at once, so only decoding needs more. Nobody
        who runs waits long for what others read from the second tier: the rest of them begin later.
        """
        until = time.monotonic() + _MOST_LOADING_S
        while self.waiting and len(self.running) < self._capacity:
            session = self.waiting[0]
            if session.ahead:
                return  # preempted while its token was on the way
            if not self._pool.states.has_room:
                return
            hit = session.reuse_prefix(self._pool)
            if self._comes_to_be_shared(session):
                session.release_blocks(self._pool)
                return
            wanted = session.blocks_wanted(session.num_known, self._pool.block_size)
            # A spare block for each running session, or it would soon be preempted again.
            if wanted + len(self.running) > self._pool.available:
                session.release_blocks(self._pool)
                return
            session.blocks += self._pool.allocate(wanted)
            hit += session.load_prefix(self._pool)
            self.running.append(self.waiting.popleft())
            session.admissions += 1
            if session.admissions == 1:
                self.prefix_query_tokens += session.num_known
                self.prefix_hit_tokens += hit
            if self._pool.tier is not None and time.monotonic() > until:
                return

    def _comes_to_be_shared(self, session: InferenceSession) -> bool:
        """Whether a running session computes what this one begins with too, as the choices of one
        request do. Prompts are computed one after the other anyway, so waiting costs nothing."""
        return any(session.awaits(other, self._pool) >= _LEAST_SHARED for other in self.running)

    @property
    def _capacity(self) -> int:
        """Sessions that fit a step; fewer than slots where memory has run out."""
        return min(self.max_batch_size, self.max_step_tokens)

    def _allocate_blocks(self) -> None:
        """Give each running session, oldest first, blocks for what it is about to compute."""
        size = self._pool.block_size
        for session in self.running:  # its end may go to others
            if len(session.tokens) + session.ahead <= len(session.blocks) * size:
                continue  # as of nearly all
            tokens = session.num_known if not session.waits else session.computed
            wanted = session.blocks_wanted(tokens, size)
            if wanted and not self._take_blocks(session, wanted):
                return

    def _take_blocks(self, session: InferenceSession, count: int) -> bool:
        """Give `session` so many more blocks, if need be those of younger ones. Where that is not
        enough it is preempted itself: False."""
        while count > self._pool.available and self.running[-1] is not session:
            self._preempt_youngest()
        if count > self._pool.available:
            self._preempt_youngest()
            return False
        session.blocks += self._pool.allocate(count)
        return True

    def _preempt_youngest(self) -> None:
        """Take the youngest session's blocks; it waits, first in line, to be computed again."""
        session = self.running.pop()
        session.release_blocks(self._pool)
        self.waiting.appendleft(session)
        self.preemptions += 1
