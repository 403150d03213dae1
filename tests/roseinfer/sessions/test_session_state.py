"""The slots that one session's states are written to."""

from roseinfer.kv_cache.block_pool import BlockPool
from roseinfer.kv_cache.state_pool import StatePool
from roseinfer.sessions.session_state import SessionState


def test_each_copy_is_written_once_though_its_block_is_registered_later() -> None:
    """A step may be launched before the last one's tokens are known."""
    # given
    pool = BlockPool(9, 4, StatePool(9, interval=8))
    state = SessionState(prompt_length=11)
    state.begin(pool, None)
    # when
    steps = [dict(state.writes(pool, *span)) for span in [(0, 9), (9, 10), (10, 13)]]
    # then: behind the prompt's last block, the latest block, and all tokens
    assert [sorted(written) for written in steps] == [[8, 9], [10], [12, 13]]
    assert {written[max(written)] for written in steps} == {state.slot}
    # and when it ends before a block is registered
    state.release(pool)
    # then nothing is kept
    assert (pool.states.used, pool.states.available) == (0, 8)
    pool.check_integrity()
