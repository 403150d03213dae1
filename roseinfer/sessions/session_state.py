"""Where one session's state is, and where copies of it are kept: see `state_pool`.

A copy is kept behind the last block of the prompt, for whoever sends that prompt again or answers
to it, and at intervals, for prompts that only begin alike. The one behind the last full block moves
along with the session: from it the session goes on after a preemption, and a conversation when its
answer has ended.
"""

from roseinfer.kv_cache.block_pool import BlockPool
from roseinfer.kv_cache.second_tier import Record
from roseinfer.kv_cache.state_pool import NO_TOKENS


class SessionState:
    """`slot` holds the state behind the session's computed tokens. A model without states has no
    slots, and nothing is done here."""

    def __init__(self, prompt_length: int) -> None:
        self.slot = NO_TOKENS
        self._prompt_length = prompt_length
        self._drafts: list[int] = []  # slots for the states behind each draft of a chunk
        self._copies: dict[int, int] = {}  # slots by numbers of tokens, of unregistered blocks
        self._latest: int | None = None  # the content behind which is the copy that moves along
        self._latest_record: Record | None = None

    def begin(self, pool: BlockPool, behind: int | None) -> None:
        """Start from the copy behind the content of this serial number, or from no tokens."""
        if pool.states.total:
            copy = NO_TOKENS if behind is None else pool.states.find(behind)
            if copy is None:
                raise RuntimeError("a session begins behind a block whose state is lost")
            self.slot = pool.states.take_copy(copy)

    def loaded(self, pool: BlockPool, serial: int) -> None:
        """The slot holds the state behind the content of this serial number, instead of that which
        it was to begin with. A copy of it is kept if there is room."""
        if self.slot != NO_TOKENS:
            pool.states.cancel_copy(self.slot)
            if pool.states.available:
                pool.states.keep(serial, pool.states.take_copy(self.slot))

    def writes(self, pool: BlockPool, start: int, end: int) -> list[tuple[int, int]]:
        """Where a step writes states that computes the tokens from `start` to `end`, and drafts
        behind them: pairs of a number of tokens and the slot for the state behind so many."""
        if self.slot == NO_TOKENS:
            return []
        borders = self._borders(pool, start, end)[: pool.states.available]
        copies = {border: pool.states.take() for border in borders}
        self._copies |= copies
        own = [(end + further, slot) for further, slot in enumerate((self.slot, *self._drafts))]
        return [*copies.items(), *own]

    def _borders(self, pool: BlockPool, start: int, end: int) -> list[int]:
        interval, size = pool.states.interval, pool.block_size
        borders = {*range(0, end + 1, interval), self._prompt_end(size), end // size * size}
        return sorted(border for border in borders if start < border <= end)

    def _prompt_end(self, block_size: int) -> int:
        """Of a prompt that is found in the cache the last token is computed all the same."""
        return (self._prompt_length - 1) // block_size * block_size

    def register(
        self, pool: BlockPool, tokens: int, serial: int, record: Record | None = None
    ) -> None:
        """The block that ends behind so many tokens has content with this serial number now. With a
        `record` the state behind it is also written to the second tier, the one that moves along
        when it has come to its end."""
        slot = self._copies.pop(tokens, None)
        if slot is None:
            return
        pool.states.keep(serial, slot)
        if self._latest is not None:
            pool.states.forget(self._latest)
        moves = tokens % pool.states.interval and tokens != self._prompt_end(pool.block_size)
        self._latest, self._latest_record = (serial, record) if moves else (None, None)
        if not moves:
            self._save(pool, serial, record)

    def _save(self, pool: BlockPool, serial: int, record: Record | None) -> None:
        if pool.tier is None or record is None:
            return
        if (slot := pool.states.find(serial)) is not None:
            pool.tier.save_state(slot, record)

    def take_drafts(self, pool: BlockPool, count: int) -> int:
        """Take slots for the states behind `count` drafts; returns for how many there are some."""
        if self.slot != NO_TOKENS:
            count = min(count, pool.states.available)
            self._drafts = [pool.states.take() for _ in range(count)]
        return count

    def accept(self, pool: BlockPool, count: int) -> None:
        """The first `count` drafts of the step were right: the state behind them is the own one."""
        if self._drafts:
            slots = [self.slot, *self._drafts]
            self.slot, self._drafts = slots.pop(count), []
            pool.states.give_back(slots)

    def release(self, pool: BlockPool) -> None:
        """Give all slots back but those of copies behind registered blocks. May be repeated."""
        if self._latest is not None:
            self._save(pool, self._latest, self._latest_record)
        if self.slot != NO_TOKENS:
            pool.states.give_back([self.slot, *self._drafts, *self._copies.values()])
        self.slot, self._drafts, self._copies, self._latest = NO_TOKENS, [], {}, None
