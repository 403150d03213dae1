"""One test for each known mistake in the code this engine grew out of. None may come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rose.errors import PromptTooLong
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams, sampled_tokens
from roseinfer import attention as attention_module
from roseinfer.batch import Chunk, PackedBatch, pack
from roseinfer.session import SamplingRequest
from tests.roseinfer.models import (
    answers,
    build,
    byte_tokenizer,
    drain,
    greedy,
    prompts,
    reference,
    run_alone,
    tiny_llama,
    tokens,
)


@pytest.fixture
def engine(no_native: None) -> Iterator[InferenceEngine]:
    """Run by transformers' code: the mistakes were made in what surrounds it."""
    made = InferenceEngine.from_model(tiny_llama(), byte_tokenizer(), kv_cache_tokens=4096)
    yield made
    made.cache.pool.check_integrity()
    assert made.cache.pool.used == 0, "the scenario leaked blocks"


@pytest.fixture
def batches(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[PackedBatch]]:
    """Every packed batch that the engine runs."""
    seen: list[PackedBatch] = []

    def record(*arguments: Any) -> PackedBatch:
        seen.append(pack(*arguments))
        return seen[-1]

    monkeypatch.setattr(attention_module, "pack", record)
    return seen


def session(engine: InferenceEngine, prompt: list[int]) -> Any:
    made = engine.new_session(prompt)
    made.blocks = engine.cache.pool.allocate(made.blocks_wanted(len(prompt) + 8, 16))
    return made


def slots_of(made: Any, start: int, stop: int) -> list[int]:
    return [made.blocks[p // 16] * 16 + p % 16 for p in range(start, stop)]


def test_right_padding_without_position_ids(
    engine: InferenceEngine, batches: list[PackedBatch]
) -> None:
    """Prompts of different lengths each count their positions from zero."""
    runner = OnlineScheduler(engine)
    for prompt in prompts(4, 7):
        runner.add_request(prompt, params=greedy(2))
    runner.step()
    runner.step()
    prefill, decode = (batch.position_ids[0].tolist() for batch in batches)
    assert prefill[:11] == [*range(4), *range(7)]
    assert decode[:2] == [4, 7]


def test_logits_read_at_a_pad_position(engine: InferenceEngine, batches: list[PackedBatch]) -> None:
    """The shorter prompt's first token comes from its own last row."""
    model, asked = tiny_llama(), prompts(3, 29)
    runner = OnlineScheduler(engine)
    names = [runner.add_request(prompt, params=greedy(1)) for prompt in asked]
    outputs = {output.request_id: output for output in runner.step()}
    assert batches[0].logit_rows.tolist()[:2] == [2, 31]
    assert [list(outputs[n].token_ids) for n in names] == [reference(model, p, 1) for p in asked]


def test_pads_attended_in_decode(engine: InferenceEngine) -> None:
    """Whatever lies in the reserved block and behind a sequence's end has no effect."""
    asked = prompts(3, 40, 21)
    expected = [tokens(run_alone(engine, prompt, greedy(6))) for prompt in asked]
    engine.cache.pool.release(engine.cache.pool.allocate(engine.cache.pool.available))
    for storage in (*engine.cache.keys, *engine.cache.values):
        storage.fill_(37.0)
    assert answers(engine, asked, 6) == expected


def test_new_kv_written_at_the_padded_column_and_cut_off(engine: InferenceEngine) -> None:
    """A decode step writes its key where its position says, and it is there in the next step."""
    short, long = session(engine, prompts(3)[0]), session(engine, prompts(40)[0])
    engine.forward([Chunk(short, 3), Chunk(long, 40)])
    for made in (short, long):
        made.computed = made.num_known
        made.append(9)
    keys = engine.cache.keys[0]
    before = keys.clone()
    engine.forward([Chunk(short, 1), Chunk(long, 1)])
    changed = (keys != before).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert set(changed) - {0} == {*slots_of(short, 3, 4), *slots_of(long, 40, 41)}
    for made in (short, long):
        made.release_blocks(engine.cache.pool)


def test_eos_searched_in_the_prompt(engine: InferenceEngine) -> None:
    """An end token in the prompt ends nothing."""
    (end,) = engine.eos_token_ids
    outputs = run_alone(engine, [5, end, 6, end], SamplingParams(max_new_tokens=3))
    assert len(outputs) == 3 or outputs[-1].token_ids == (end,)
    assert outputs[0].token_ids


def test_every_layers_kv_re_padded_and_copied_each_step(engine: InferenceEngine) -> None:
    """A step leaves the cache where it is and writes only the slots of its new tokens."""
    made = session(engine, prompts(20)[0])
    storages = [*engine.cache.keys, *engine.cache.values]
    addresses = [storage.data_ptr() for storage in storages]
    engine.forward([Chunk(made, 20)])
    made.computed = 20
    made.append(9)
    before = [storage.clone() for storage in storages]
    engine.forward([Chunk(made, 1)])
    assert [storage.data_ptr() for storage in storages] == addresses
    for storage, old in zip(storages, before, strict=True):
        written = (storage != old).flatten(1).any(dim=1).nonzero().flatten().tolist()
        assert set(written) - {0} == set(slots_of(made, 20, 21))
    made.release_blocks(engine.cache.pool)


def test_a_prefill_inside_add_request(engine: InferenceEngine, batches: list[PackedBatch]) -> None:
    """Adding a request computes nothing and takes no block."""
    runner = OnlineScheduler(engine)
    name = runner.add_request(prompts(50)[0], params=greedy(1))
    assert batches == []
    assert engine.cache.pool.used == 0
    assert runner.get_response(name) == ""
    drain(runner)
    assert len(batches) == 1


def test_sampling_row_by_row(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the sampler serves the whole batch."""
    calls: list[int] = []
    sample_tokens = sampled_tokens.sample_tokens

    def count(logits: torch.Tensor, rows: list[SamplingRequest]) -> torch.Tensor:
        calls.append(len(rows))
        return sample_tokens(logits, rows)

    monkeypatch.setattr(sampled_tokens, "sample_tokens", count)
    runner = OnlineScheduler(engine)
    for i, prompt in enumerate(prompts(5, 6, 7, 8)):
        runner.add_request(prompt, params=greedy(3, temperature=i / 2, seed=i, top_k=i + 1))
    drain(runner)
    assert calls == [4, 4, 4]


def test_round_robin_over_a_shrinking_list(engine: InferenceEngine) -> None:
    """Requests that finish in the middle of the batch cost nobody a turn."""
    runner = OnlineScheduler(engine)
    lengths = [3, 1, 5, 1, 2, 6]
    names = [
        runner.add_request(prompt, params=greedy(length))
        for prompt, length in zip(prompts(4, 5, 6, 7, 8, 9), lengths, strict=True)
    ]
    for step in range(6):
        served = {output.request_id for output in runner.step()}
        assert served == {n for n, length in zip(names, lengths, strict=True) if length > step}
    assert not runner.has_unfinished()


def test_sessions_that_leak_their_blocks(engine: InferenceEngine) -> None:
    """Every way out gives the blocks back: finished, aborted waiting, aborted running."""
    runner = OnlineScheduler(engine, max_batch_size=2)
    names = [
        runner.add_request(p, params=greedy(2 + 9 * i)) for i, p in enumerate(prompts(40, 50, 60))
    ]
    runner.step()
    assert engine.cache.pool.used > 0
    runner.abort(names[2])
    runner.abort(names[1])
    drain(runner)
    assert engine.cache.pool.used == 0
    engine.cache.pool.check_integrity()


def test_a_silent_cut_of_a_long_prompt(engine: InferenceEngine) -> None:
    """A prompt that leaves no room for a token is refused, and one token less is not."""
    limit = engine.context_length
    with pytest.raises(PromptTooLong, match=f"{limit} tokens"):
        engine.new_session(prompts(limit)[0])
    with pytest.raises(PromptTooLong):
        engine.generate("a" * limit)
    assert len(run_alone(engine, prompts(limit - 1)[0], greedy(5))) == 1


def test_no_first_token_from_step(engine: InferenceEngine) -> None:
    """The first token comes out of `step` like every other one, with index 0."""
    runner = OnlineScheduler(engine)
    name = runner.add_request(prompts(5)[0], params=greedy(3))
    (first,) = runner.step()
    assert (first.request_id, first.index, len(first.token_ids)) == (name, 0, 1)
    assert [output.index for output in drain(runner)[name]] == [1, 2]


def test_no_cancel(engine: InferenceEngine) -> None:
    """A running request can be stopped between two steps, and frees its place at once."""
    runner = OnlineScheduler(engine, max_batch_size=1)
    name = runner.add_request(prompts(5)[0], params=greedy(100))
    runner.step()
    assert runner.free_slots == 0
    assert runner.abort(name)
    assert runner.free_slots == 1
    assert not runner.has_unfinished()
    assert not runner.abort("nobody")


def test_windows_longer_than_the_prompt_do_not_matter() -> None:
    """A window is counted in tokens of the sequence, not in columns of a padded batch."""
    model = build("mistral", sliding_window=8)
    asked = prompts(30, 5)
    expected = [reference(model, prompt, 12) for prompt in asked]
    engine = InferenceEngine.from_model(model, block_size=4, kv_cache_tokens=512)
    assert answers(engine, asked, 12, max_step_tokens=33) == expected
