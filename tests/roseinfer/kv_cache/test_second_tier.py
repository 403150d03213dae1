"""What an engine finds in files is what it would have computed, and nobody else's."""

import gc
import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.checkpoints.loading import LoadedModel
from roseinfer.kv_cache.second_tier import SecondTier, SecondTierOptions
from roseinfer.kv_cache.slot_file import SlotFile
from roseinfer.model.attention import IMPLEMENTATION
from tests.roseinfer.models import (
    build,
    check_left_in_order,
    drain,
    forget_prefixes,
    greedy,
    needs_decoder,
    prompts,
    run_alone,
    tokens,
)

LIMIT_S = 60.0
PROMPT = prompts(75)[0]
COUNT = 24


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "second-tier"


def engine_of(folder: Path | None, model: Any = None, **changes: Any) -> InferenceEngine:
    """As a worker that starts has it: with an empty cache, and the files of those before."""
    model = build("llama") if model is None else model
    model.eval().set_attn_implementation(IMPLEMENTATION)
    options = {"block_size": 16, "kv_cache_tokens": 1024, **changes}
    weights = options.pop("weights", None)
    tier = SecondTierOptions(options.pop("bytes", 10_000_000), folder) if folder else None
    loaded = LoadedModel(model, None, "tiny", options.pop("fingerprint", "tiny"), weights)
    return InferenceEngine(loaded=loaded, second_tier=tier, **options)


def tier_of(engine: InferenceEngine) -> SecondTier:
    tier = engine.second_tier.tier
    assert tier is not None, engine.second_tier.description
    return tier


def answer(engine: InferenceEngine, prompt: list[int], **how: Any) -> tuple[list[int], int | None]:
    """The tokens, and how many of the prompt were cached."""
    scheduler = OnlineScheduler(engine, 4, how.get("max_step_tokens", 512), **how.get("extra", {}))
    session = engine.new_session(
        prompt,
        params=how.get("params", greedy(COUNT)),
        generated_ids=how.get("generated", ()),
        cache_salt=how.get("salt", ""),
    )
    outputs = drain_of(scheduler, session)
    if engine.second_tier.tier is not None:
        assert tier_of(engine).flush(LIMIT_S)
    return tokens(outputs), outputs[-1].cached_tokens


def drain_of(scheduler: OnlineScheduler, session: Any) -> Any:
    scheduler.add_session(session)
    return drain(scheduler)[session.request_id]


MODELS: dict[str, Any] = {
    "float32": lambda: {"model": build("llama")},
    "bfloat16": lambda: {"model": build("llama").bfloat16()},
    "int8": lambda: {"model": build("llama").bfloat16(), "weights": "int8"},
    "int4": lambda: {"model": build("llama").bfloat16(), "weights": "int4"},
    "window": lambda: {"model": build("gemma2")},
    "shared keys": lambda: {"model": build("gemma4")},
    "pairs": lambda: {"model": build("llama", hidden_size=128).bfloat16()},
    "odd blocks": lambda: {"model": build("llama"), "block_size": 5},
}


@needs_decoder
@pytest.mark.parametrize(
    ("name", "max_step_tokens"), [("float32", 512), *((name, 7) for name in MODELS)]
)
def test_a_restart_computes_what_is_not_there(
    folder: Path, name: str, max_step_tokens: int
) -> None:
    # given
    expected, _ = answer(engine_of(None, **MODELS[name]()), PROMPT)
    assert answer(engine_of(folder, **MODELS[name]()), PROMPT) == (expected, 0)
    # when another worker begins, with other steps
    engine = engine_of(folder, **MODELS[name]())
    again = answer(engine, PROMPT, max_step_tokens=max_step_tokens)
    # then
    size = engine.cache.block_size
    assert again == (expected, (len(PROMPT) - 1) // size * size)
    check_left_in_order(engine)
    # and one that takes the answer over in its middle has the beginning of the answer too
    engine = engine_of(folder, **MODELS[name]())
    rest, cached = answer(engine, PROMPT, generated=expected[:20])
    assert (rest, cached) == (expected[20:], len(PROMPT))
    assert tier_of(engine).stats().hit_tokens == (len(PROMPT) + 19) // size * size
    check_left_in_order(engine)


# One of each kind of state, and one without any attention.
@pytest.mark.parametrize("architecture", ["qwen3_5", "falcon_h1", "lfm2", "mamba2"])
def test_layers_with_a_state_go_on_behind_a_state_from_the_file(
    folder: Path, architecture: str
) -> None:
    # given
    expected, _ = answer(engine_of(None, build(architecture)), PROMPT)
    engine = engine_of(folder, build(architecture))
    assert answer(engine, PROMPT) == (expected, 0)
    check_left_in_order(engine)
    # when
    engine = engine_of(folder, build(architecture))
    again = answer(engine, PROMPT)
    # then: the state behind the last whole block of the prompt
    assert again == (expected, 64)
    # and a second request finds it in the cache itself
    before = tier_of(engine).stats().query_tokens
    assert answer(engine, PROMPT) == (expected, 64)
    assert tier_of(engine).stats().query_tokens == before
    check_left_in_order(engine)
    # and the next turn of the conversation goes on behind the answer
    engine = engine_of(folder, build(architecture))
    turn = [*PROMPT, *expected, 5, 6, 7]
    found, cached = answer(engine, turn, params=greedy(8))
    assert cached == (len(PROMPT) + COUNT - 1) // 16 * 16
    assert found == answer(engine_of(None, build(architecture)), turn, params=greedy(8))[0]
    check_left_in_order(engine)


def test_without_its_states_a_hybrid_computes_its_prompt(folder: Path) -> None:
    # given
    expected, _ = answer(engine_of(folder, build("lfm2")), PROMPT)
    (states,) = folder.glob("*.states")
    states.unlink()
    # when
    engine = engine_of(folder, build("lfm2"))
    # then
    assert answer(engine, PROMPT) == (expected, 0)
    assert answer(engine_of(folder, build("lfm2")), PROMPT) == (expected, 64), "it is written again"


def test_what_a_small_cache_evicts_is_found_again(folder: Path) -> None:
    # given a cache that holds one conversation
    engine = engine_of(folder, kv_cache_tokens=112)
    asked = prompts(75, 76, 77)
    first = [answer(engine, prompt) for prompt in asked]
    assert [cached for _, cached in first] == [0, 0, 0]
    # when
    again = [answer(engine, prompt) for prompt in asked]
    # then
    assert [ids for ids, _ in again] == [ids for ids, _ in first]
    assert [cached for _, cached in again] == [64, 64, 64]
    stats = tier_of(engine).stats()
    assert stats.hit_tokens == 3 * 64
    assert stats.query_tokens == 6 * 64
    assert stats.dropped == 0
    check_left_in_order(engine)


def test_preempted_requests_find_what_they_lost(folder: Path) -> None:
    # given a cache that holds no two of them to the end
    engine = engine_of(folder, kv_cache_tokens=128)
    expected = [answer(engine_of(None), prompt, params=greedy(40))[0] for prompt in prompts(40, 41)]
    scheduler = OnlineScheduler(engine, 2, speculation=True)
    names = [scheduler.add_request(prompt, params=greedy(40)) for prompt in prompts(40, 41)]
    # when
    outputs = drain(scheduler)
    # then
    assert [tokens(outputs[name]) for name in names] == expected
    assert [outputs[name][-1].cached_tokens for name in names] == [0, 0]
    assert scheduler.stats().preemptions > 0
    check_left_in_order(engine)


def test_only_the_same_salt_finds_it(folder: Path) -> None:
    # given
    salts = ("", "a", "b", "a/", "0")
    for salt in salts[:2]:
        assert answer(engine_of(folder), PROMPT, salt=salt)[1] == 0
    # when
    found = {
        salt: answer(engine_of(folder), PROMPT, salt=salt)[1] for salt in (*salts[2:], "a", "")
    }
    # then
    assert found == {"b": 0, "a/": 0, "0": 0, "a": 64, "": 64}


def test_scores_of_a_prompt_are_computed_and_the_rest_is_found(folder: Path) -> None:
    # given
    scored = greedy(4, logprobs=True, prompt_logprobs=True)
    engine = engine_of(folder)
    expected = run_alone(engine, PROMPT, scored)
    assert tier_of(engine).flush(LIMIT_S)
    # when
    again = run_alone(engine_of(folder), PROMPT, scored)
    # then
    assert again[0].prompt_logprobs == expected[0].prompt_logprobs
    assert again[-1].cached_tokens == 0


@needs_decoder
def test_another_cache_s_bits_are_not_used(folder: Path) -> None:
    # given
    answer(engine_of(folder, build("llama").bfloat16()), PROMPT)
    for other in (
        {"fingerprint": "another"},
        {"model": build("llama")},
        {"model": build("llama").bfloat16(), "weights": "int8"},
        {"model": build("llama").bfloat16(), "block_size": 32},
    ):
        # when
        engine = engine_of(folder, **{"model": build("llama").bfloat16(), **other})
        # then
        assert answer(engine, PROMPT)[1] == 0
        assert tier_of(engine).stats().damaged == 0


def test_damaged_files_change_no_token(folder: Path) -> None:
    # given
    expected, _ = answer(engine_of(folder, build("lfm2")), PROMPT)
    files = list(folder.iterdir())
    whole = {path: path.read_bytes() for path in files}
    draw, hits = random.Random(4), 0
    for round_number in range(8):
        # when one byte in a thousand, or everything from somewhere on, is another one
        for path, data in whole.items():
            spoiled = bytearray(data)
            first = draw.randrange(len(data)) if round_number % 3 == 0 else len(data)
            for place in [*range(first, len(data), 64), *draw.sample(range(4096, len(data)), 2000)]:
                spoiled[place] ^= 1 << draw.randrange(8)
            path.write_bytes(spoiled)
        engine = engine_of(folder, build("lfm2"))
        ids, cached = answer(engine, PROMPT)
        # then
        assert ids == expected
        hits += cached or 0
        check_left_in_order(engine)
    assert hits < 8 * 64


def test_memory_that_is_used_again_while_it_is_written_is_not_published(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a writer that stops in the middle of its first write
    writes, go_on, fill = threading.Event(), threading.Event(), SlotFile.fill

    def slow_fill(file: SlotFile, *args: Any) -> bytes:
        checksum = fill(file, *args)
        writes.set()
        assert go_on.wait(LIMIT_S)
        return checksum

    monkeypatch.setattr(SlotFile, "fill", slow_fill)
    engine = engine_of(folder)
    run_alone(engine, PROMPT, greedy(2))
    assert writes.wait(LIMIT_S)
    # when the engine takes all memory for something else
    forget_prefixes(engine)
    go_on.set()
    assert tier_of(engine).flush(LIMIT_S)
    # then nothing is there, neither of that block nor of those that waited
    monkeypatch.undo()
    stats = tier_of(engine).stats()
    assert (stats.written, stats.dropped) == (0, 4)
    assert answer(engine_of(folder), PROMPT)[1] == 0


def test_a_disk_that_fails_turns_it_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    expected, _ = answer(engine_of(folder), PROMPT)
    engine = engine_of(folder)

    def fails(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.pread", fails)
    # when
    with caplog.at_level(logging.ERROR):
        found = answer(engine, PROMPT)
    # then
    assert found == (expected, 0)
    assert "the second tier of the cache is off from now on: [Errno 5]" in caplog.text


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "roseinfer.execution.second_tier"):
        yield caplog


def test_the_log_says_what_it_holds(folder: Path, told: pytest.LogCaptureFixture) -> None:
    engine = engine_of(folder)
    assert "second tier of the prefix cache: on: up to " in told.text
    assert str(folder) in engine.second_tier.description
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"fingerprint": ""}, "off: the model did not come from files, so nothing tells it apart"),
        ({"device": "cuda"}, "off: the KV cache is on cuda, and it needs one on a CPU"),
        ({"full": True}, "off: [Errno 28] No space left on device"),
    ],
)
def test_the_log_says_why_there_is_none(
    folder: Path,
    told: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    spoil: dict[str, Any],
    reason: str,
) -> None:
    # given
    changes = dict(spoil)
    if changes.pop("full", False):

        def full(*_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.posix_fallocate", full)
    if device := changes.pop("device", None):
        make = "roseinfer.execution.engine_core.make_cache"
        from roseinfer.execution.cache_size import make_cache

        def elsewhere(*args: Any) -> Any:
            cache = make_cache(*args)
            cache.device = torch.device(device)
            return cache

        monkeypatch.setattr(make, elsewhere)
    # when
    engine = engine_of(folder, **changes)
    # then
    assert engine.second_tier.tier is None
    assert engine.second_tier.description == reason
    assert reason in told.text
    assert answer(engine, PROMPT)[1] == 0


def test_an_engine_that_ends_writes_what_waits_and_closes_its_files(folder: Path) -> None:
    # given
    others = set(threading.enumerate())
    engine = engine_of(folder)
    run_alone(engine, PROMPT, greedy(2))
    (writer,) = set(threading.enumerate()) - others
    # when
    del engine
    gc.collect()
    # then
    assert answer(engine_of(folder), PROMPT, params=greedy(1))[1] == 64
    writer.join(60)
    assert not writer.is_alive()
