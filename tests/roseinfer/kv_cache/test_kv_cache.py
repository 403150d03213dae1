"""Blocks: their count always adds up, their content is what it claims to be."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.errors import PromptTooLong
from rose.memory import used_memory
from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.kv_cache.block_pool import BlockPool, CacheExhausted
from roseinfer.kv_cache.cache import KVCache, LayerShape
from roseinfer.sessions.session import Chunk
from tests.roseinfer.models import (
    byte_tokenizer,
    drain,
    greedy,
    prompts,
    run_alone,
    tiny_llama,
    tokens,
)


class Colliding(int):
    """A token id that hashes like every other one."""

    def __hash__(self) -> int:
        return 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="of Linux")
def test_a_cache_in_main_memory_takes_pages_as_it_fills() -> None:
    # given
    before, shape = used_memory(), LayerShape(kv_heads=8, key_dim=64, value_dim=64)
    # when
    cache = KVCache([shape], 4096, 16, device=torch.device("cpu"), dtype=torch.float32)
    # then
    assert cache.size_bytes == 4096 * 16 * 8 * (64 + 64) * 4
    assert used_memory() - before < cache.size_bytes / 8
    cache.keys[0].fill_(1)
    assert used_memory() - before > cache.size_bytes / 4
    assert not cache.values[0].any()


def fill(pool: BlockPool, ids: list[int], salt: str = "") -> list[int]:
    """Allocate and register blocks that hold `ids`."""
    blocks = pool.allocate(len(ids) // pool.block_size)
    parent: int | str = salt
    for i, block in enumerate(blocks):
        parent = pool.register(block, parent, ids[i * pool.block_size : (i + 1) * pool.block_size])
    return blocks


def test_block_zero_is_never_handed_out() -> None:
    pool = BlockPool(5, 4)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(CacheExhausted):
        pool.allocate(1)


def test_a_prefix_is_found_and_shared() -> None:
    pool = BlockPool(10, 2)
    first = fill(pool, [1, 2, 3, 4])
    assert pool.match([1, 2, 3, 4, 5], limit=4) == first
    assert pool.match([1, 2, 9, 9], limit=4) == first[:1]
    pool.release(first)
    pool.check_integrity()
    assert pool.used == 2  # still owned by the two that matched
    pool.release(first)
    pool.release(first[:1])
    assert (pool.used, pool.cached) == (0, 2)
    pool.check_integrity()


def test_the_same_tokens_after_another_beginning_are_not_the_same() -> None:
    pool = BlockPool(10, 2)
    fill(pool, [1, 2, 3, 4])
    fill(pool, [5, 6])
    assert len(pool.match([5, 6, 3, 4], limit=4)) == 1


def test_blocks_are_shared_within_a_salt_only() -> None:
    # given: one text under two salts and under none, and salts that look like a serial number
    pool, ids = BlockPool(30, 2), [1, 2, 3, 4]
    salts = ("", "a", "b", "0", "1")
    filled = {salt: fill(pool, ids, salt) for salt in salts}
    # when
    found = {salt: list(pool.match(ids, limit=4, salt=salt)) for salt in (*salts, "c", "2")}
    # then
    assert found == {salt: list(blocks) for salt, blocks in filled.items()} | {"c": [], "2": []}
    assert len({block for blocks in found.values() for block in blocks}) == len(salts) * 2
    pool.check_integrity()


def test_equal_hashes_do_not_pass_for_equal_tokens() -> None:
    pool = BlockPool(10, 2)
    ids = [Colliding(i) for i in (1, 2, 3, 4)]
    blocks = fill(pool, ids)
    assert hash((0, tuple(ids[:2]))) == hash((0, (Colliding(8), Colliding(9))))
    assert not pool.match([Colliding(8), Colliding(9)], limit=2)
    assert pool.match([*ids[:2], Colliding(3), Colliding(5)], limit=4) == blocks[:1]


def test_the_longest_unused_content_goes_first() -> None:
    pool = BlockPool(5, 1)
    old, new = fill(pool, [1, 2]), fill(pool, [3, 4])
    pool.release(old)
    pool.release(new)
    pool.allocate(1)
    assert pool.match([1, 2], limit=2) == old[:1]  # the tail of the older one was given up
    assert pool.match([3, 4], limit=2) == new
    pool.check_integrity()


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), max_size=60))
def test_any_history_keeps_the_count(history: list[tuple[int, int]]) -> None:
    pool = BlockPool(9, 2)
    tables: list[list[int]] = []
    for kind, number in history:
        ids = [(number + i) % 3 for i in range(number)]
        if kind == 0 and len(ids) // 2 <= pool.available:
            tables.append(fill(pool, ids))
        elif kind == 1:
            tables.append(pool.match(ids, limit=len(ids)))
        elif kind == 2 and tables:
            pool.release(tables.pop(number % len(tables)))
        elif kind == 3 and pool.available:
            tables.append(pool.allocate(1))
        pool.check_integrity()
    for table in tables:
        pool.release(table)
    pool.check_integrity()
    assert pool.used == 0


def test_integrity_check_notices() -> None:
    pool = BlockPool(5, 2)
    pool.allocate(1)
    pool._references.clear()
    with pytest.raises(RuntimeError, match="lost count"):
        pool.check_integrity()


def test_a_request_says_how_much_of_its_prompt_was_cached(engine: InferenceEngine) -> None:
    # given
    prompt = prompts(70)[0]
    first = run_alone(engine, prompt, greedy(8))
    # when: the same, one that has its beginning, and one that goes on with logged tokens
    again = run_alone(engine, prompt, greedy(8))
    other = run_alone(engine, prompt[:40] + prompt[:30], greedy(8))
    scheduler = OnlineScheduler(engine)
    logged = tokens(first)[:7]
    name = scheduler.add_request(prompt[:60], params=greedy(30), generated_ids=prompt[60:])
    longer = drain(scheduler)[name]
    stats = scheduler.stats()
    ended = scheduler.add_request(prompt, params=greedy(7), generated_ids=logged)
    (nothing,) = drain(scheduler)[ended]
    # then: whole blocks of 16, never more than the prompt, and only with the end
    assert [output.cached_tokens for output in first] == [None] * 7 + [0]
    assert tokens(again) == tokens(first)
    assert (again[-1].cached_tokens, longer[-1].cached_tokens) == (64, 60)
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (70, 64)
    assert other[-1].cached_tokens == 32
    assert nothing.cached_tokens is None


def test_no_request_finds_what_another_salt_has_computed() -> None:
    # given: 40 prompts, sent under one salt, under another, under none and under the first again
    engine = InferenceEngine.from_model(tiny_llama(), byte_tokenizer(), kv_cache_tokens=20_000)
    scheduler = OnlineScheduler(engine, 8)
    asked = prompts(*(33 + number % 30 for number in range(40)))
    cached: dict[str, list[int | None]] = {}
    texts: dict[str, list[list[int]]] = {}
    for visit, salt in (("first", "a"), ("other", "b"), ("none", ""), ("again", "a")):
        sessions = [
            engine.new_session(prompt, params=greedy(4), cache_salt=salt) for prompt in asked
        ]
        # when
        for session in sessions:
            scheduler.add_session(session)
        outputs = drain(scheduler)
        cached[visit] = [outputs[s.request_id][-1].cached_tokens for s in sessions]
        texts[visit] = [tokens(outputs[s.request_id]) for s in sessions]
    # then
    assert cached["first"] == cached["other"] == cached["none"] == [0] * 40
    assert cached["again"] == [(len(prompt) - 1) // 16 * 16 for prompt in asked]
    assert texts["first"] == texts["other"] == texts["none"] == texts["again"]
    engine.cache.pool.check_integrity()


def test_preemption_and_speculation_keep_the_salt() -> None:
    # given: a cache that holds no two of them to the end, and drafts from their own text
    engine = InferenceEngine.from_model(tiny_llama(), byte_tokenizer(), kv_cache_tokens=128)
    scheduler = OnlineScheduler(engine, 2, speculation=True)
    prompt = prompts(40)[0]
    sessions = [
        engine.new_session(prompt, params=greedy(40), cache_salt=salt) for salt in ("a", "b")
    ]
    for session in sessions:
        scheduler.add_session(session)
    # when
    used = {session.cache_salt: set[int]() for session in sessions}
    while scheduler.has_unfinished():
        scheduler.step()
        running = {s.cache_salt: set(s.blocks) for s in sessions}
        # then: no block is both's
        assert not running["a"] & running["b"]
        used = {salt: used[salt] | blocks for salt, blocks in running.items()}
    assert scheduler.stats().preemptions > 0
    assert all(used.values())
    engine.cache.pool.check_integrity()


def test_a_preempted_request_does_not_count_what_it_computed_itself() -> None:
    # given: a cache that holds no two of them to the end
    engine = InferenceEngine.from_model(tiny_llama(), byte_tokenizer(), kv_cache_tokens=128)
    scheduler = OnlineScheduler(engine, 2)
    names = [scheduler.add_request(prompt, params=greedy(40)) for prompt in prompts(40, 41)]
    # when
    outputs = drain(scheduler)
    # then
    assert scheduler.stats().preemptions > 0
    assert [outputs[name][-1].cached_tokens for name in names] == [0, 0]


def test_a_prompt_of_whole_blocks_still_computes_its_last_token(engine: InferenceEngine) -> None:
    prompt = prompts(64)[0]
    first = tokens(run_alone(engine, prompt, greedy(4)))
    assert tokens(run_alone(engine, prompt, greedy(4))) == first


def test_a_request_for_the_whole_cache_finishes() -> None:
    engine = InferenceEngine.from_model(tiny_llama(), block_size=4, kv_cache_tokens=40)
    assert engine.context_length == 40
    others = prompts(6, 6, 6)
    scheduler = OnlineScheduler(engine)
    for prompt in [*others, prompts(20)[0]]:
        scheduler.add_request(prompt, params=greedy(100))
    assert {outputs[-1].finish_reason for outputs in drain(scheduler).values()} == {"length"}
    engine.cache.pool.check_integrity()
    with pytest.raises(PromptTooLong):
        scheduler.add_request(prompts(40)[0])


def test_abort_frees_blocks_at_once(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine, max_batch_size=2)
    names = [scheduler.add_request(prompt, params=greedy(50)) for prompt in prompts(30, 40, 5)]
    scheduler.step()
    before = engine.cache.pool.used
    assert scheduler.free_slots == 0
    assert scheduler.abort(names[0])
    assert engine.cache.pool.used < before
    assert scheduler.abort(names[2])  # still waiting
    assert scheduler.free_slots == 1
    assert not scheduler.abort(names[0])
    assert set(drain(scheduler)) == {names[1]}


@pytest.mark.usefixtures("no_native")
def test_a_step_writes_only_the_slots_of_its_new_tokens() -> None:
    # given: a prompt of one block and a bit, and one of three tokens
    engine = InferenceEngine.from_model(tiny_llama(), kv_cache_tokens=256)
    sessions = [engine.new_session(prompt) for prompt in prompts(20, 3)]
    for session in sessions:
        session.blocks = engine.cache.pool.allocate(session.blocks_wanted(28, 16))
    engine.forward([Chunk(session, session.num_known) for session in sessions])
    for session in sessions:
        session.computed = session.num_known
        session.append(9)
    storages = [*engine.cache.keys, *engine.cache.values]
    addresses = [storage.data_ptr() for storage in storages]
    before = [storage.clone() for storage in storages]
    # when
    engine.forward([Chunk(session, 1) for session in sessions])
    # then
    assert [storage.data_ptr() for storage in storages] == addresses
    long, short = sessions
    for storage, old in zip(storages, before, strict=True):
        written = (storage != old).flatten(1).any(dim=1).nonzero().flatten().tolist()
        assert set(written) - {0} == {long.blocks[1] * 16 + 4, short.blocks[0] * 16 + 3}
