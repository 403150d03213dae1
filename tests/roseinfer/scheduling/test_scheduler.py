"""Continuous batching: admission, order, endings, what is counted, and independence of mates."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from rose.errors import ConfigurationError, InvalidParameter, PromptTooLong
from roseinfer import (
    InferenceEngine,
    OfflineScheduler,
    OnlineScheduler,
    SamplingParams,
    StepOutput,
    native,
)
from roseinfer.native import library
from roseinfer.sampling import sampler
from roseinfer.sessions.session import SamplingRequest
from tests.roseinfer.models import (
    build,
    drain,
    forget_prefixes,
    greedy,
    logits_of,
    prompts,
    reference,
    run_alone,
    text,
    tiny_llama,
    tokens,
)


def test_a_stop_token_ends_the_request(engine: InferenceEngine) -> None:
    prompt = prompts(10)[0]
    ids = tokens(run_alone(engine, prompt, greedy(12)))
    end = ids[6]
    outputs = run_alone(engine, prompt, greedy(12, stop_token_ids=(end,)))
    assert tokens(outputs) == ids[: ids.index(end) + 1]
    assert (outputs[-1].finish_reason, outputs[-1].text) == ("stop", "")


def test_eos_ends_the_request_unless_ignored() -> None:
    model = tiny_llama()
    prompt = prompts(10)[0]
    ids = reference(model, prompt, 12)
    model.generation_config.eos_token_id = [ids[4], 299]
    engine = InferenceEngine.from_model(model, kv_cache_tokens=512)
    outputs = run_alone(engine, prompt, SamplingParams(max_new_tokens=12))
    assert tokens(outputs) == ids[: ids.index(ids[4]) + 1]
    assert outputs[-1].finish_reason == "eos"
    assert tokens(run_alone(engine, prompt, greedy(12))) == ids


def test_a_stop_string_is_cut_and_its_ids_are_kept(engine: InferenceEngine) -> None:
    prompt = prompts(10)[0]
    whole = run_alone(engine, prompt, greedy(20))
    stop = text(whole)[4:6]
    outputs = run_alone(engine, prompt, greedy(20, stop=(stop,)))
    assert text(outputs) == text(whole)[: text(whole).index(stop)]
    assert outputs[-1].finish_reason == "stop"
    assert tokens(whole)[: len(tokens(outputs))] == tokens(outputs)


def test_the_context_ends_the_request(engine: InferenceEngine) -> None:
    """A prompt that leaves no room for a token is refused, and one token less is not."""
    limit = engine.context_length
    outputs = run_alone(engine, prompts(limit - 1)[0], greedy(100))
    assert [output.finish_reason for output in outputs] == ["length"]
    with pytest.raises(PromptTooLong, match=f"{limit} tokens"):
        engine.new_session(prompts(limit)[0])


def test_an_end_in_the_prompt_ends_nothing(engine: InferenceEngine) -> None:
    (end,) = engine.eos_token_ids
    outputs = run_alone(engine, [5, end, 6, end], SamplingParams(max_new_tokens=3))
    assert len(outputs) == 3 or outputs[-1].token_ids == (end,)
    assert outputs[0].token_ids


@pytest.mark.parametrize("prompt", [[], "", [-1], [300]], ids=["none", "empty", "-1", "300"])
def test_an_impossible_prompt_is_refused(engine: InferenceEngine, prompt: Any) -> None:
    with pytest.raises(InvalidParameter):
        OnlineScheduler(engine).add_request(prompt)


def test_impossible_settings_are_refused(engine: InferenceEngine) -> None:
    with pytest.raises(ConfigurationError):
        OnlineScheduler(engine, 0)
    with pytest.raises(ConfigurationError):
        OnlineScheduler(engine, 1, 0)


def test_who_comes_first_is_served_first(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine, max_batch_size=2)
    names = [scheduler.add_request(p, params=greedy(3)) for p in prompts(5, 5, 5, 5, 5)]
    assert scheduler.free_slots == 0
    assert engine.cache.pool.used == 0, "something was computed before the first step"
    finished = [o.request_id for outputs in drain(scheduler).values() for o in outputs[-1:]]
    assert finished == names
    assert scheduler.free_slots == 2


def test_requests_that_finish_cost_nobody_a_turn(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine)
    lengths = [3, 1, 5, 1, 2, 6]
    for name, length in enumerate(lengths):
        scheduler.add_request([name + 5], request_id=str(name), params=greedy(length))
    for step in range(6):
        served = {output.request_id for output in scheduler.step()}
        assert served == {str(name) for name, length in enumerate(lengths) if length > step}


def test_the_sampler_is_called_once_a_step(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    sample_tokens = sampler.sample_tokens

    def count(logits: torch.Tensor, rows: list[SamplingRequest]) -> torch.Tensor:
        calls.append(len(rows))
        return sample_tokens(logits, rows)

    monkeypatch.setattr(sampler, "sample_tokens", count)
    scheduler = OnlineScheduler(engine)
    for i, prompt in enumerate(prompts(5, 6, 7, 8)):
        scheduler.add_request(prompt, params=greedy(3, temperature=i / 2, seed=i, top_k=i + 1))
    drain(scheduler)
    assert calls == [4, 4, 4]


def test_a_long_prefill_does_not_hold_up_decoding(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine, max_batch_size=4, max_step_tokens=16)
    quick = scheduler.add_request(prompts(5)[0], params=greedy(30))
    scheduler.step()
    slow = scheduler.add_request(prompts(200)[0], params=greedy(5))
    for _ in range(10):
        assert [output.request_id for output in scheduler.step()] == [quick]
    assert slow in drain(scheduler)


def test_stats_count_what_runs_waits_and_is_used(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine, max_batch_size=2)
    for prompt in prompts(20, 30, 40):
        scheduler.add_request(prompt, params=greedy(4))
    scheduler.step()
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.capacity, stats.batch_size) == (2, 1, 2, 2)
    assert (stats.prompt_tokens, stats.generated_tokens) == (90, 2)
    assert stats.kv_blocks_used == 2 + 2
    assert stats.kv_blocks_total == 256
    assert all(seconds >= 0 for seconds in dataclasses.astuple(stats.step_times))
    drain(scheduler)
    assert scheduler.stats().generated_tokens == 12
    assert scheduler.stats().kv_blocks_used == 0


def test_a_response_is_there_once_when_its_request_has_finished(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine)
    name = scheduler.add_request("the cat", request_id="a", params=greedy(6))
    with pytest.raises(InvalidParameter, match="already in use"):
        scheduler.add_request("the dog", request_id="a")
    outputs = scheduler.step()
    assert not scheduler.is_finished(name)
    with pytest.raises(InvalidParameter, match="not finished"):
        scheduler.pop_response(name)
    more = drain(scheduler)[name]
    assert scheduler.is_finished(name)
    assert scheduler.pop_response(name) == text([*outputs, *more])
    with pytest.raises(InvalidParameter, match="no request"):
        scheduler.pop_response(name)


def test_a_prepared_session_joins_like_a_request(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine)
    prepared = engine.new_session("the cat", request_id="a", params=greedy(5))
    scheduler.add_session(prepared)
    with pytest.raises(InvalidParameter, match="already in use"):
        scheduler.add_session(engine.new_session("the cat", request_id="a"))
    assert text(drain(scheduler)["a"]) == engine.generate("the cat", greedy(5))


def test_sessions_are_prepared_in_one_thread_while_another_steps(engine: InferenceEngine) -> None:
    expected = engine.generate("the cat", greedy(20))
    scheduler = OnlineScheduler(engine, max_batch_size=4)
    with ThreadPoolExecutor(2) as threads:
        coming = [
            threads.submit(engine.new_session, "the cat", request_id=str(i), params=greedy(20))
            for i in range(40)
        ]
        outputs: dict[str, list[StepOutput]] = {}
        while coming or scheduler.has_unfinished():
            if coming:
                scheduler.add_session(coming.pop().result())
            for output in scheduler.step():
                outputs.setdefault(output.request_id, []).append(output)
    assert [text(each) for each in outputs.values()] == [expected] * 40


def test_finished_requests_need_not_be_kept(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine, keep_finished=False)
    name = scheduler.add_request("the cat", params=greedy(2))
    drain(scheduler)
    assert scheduler.add_request("the cat", request_id=name, params=greedy(2)) == name
    drain(scheduler)


def test_an_offline_run_gives_the_texts_in_the_order_of_the_requests(
    engine: InferenceEngine,
) -> None:
    scheduler = OfflineScheduler(engine, 2)
    for word in ("cat", "dog", "fox"):
        scheduler.add_request(f"the {word}", request_id=word, params=greedy(5))
    texts = scheduler.run()
    assert list(texts) == ["cat", "dog", "fox"]
    assert texts["fox"] == engine.generate("the fox", greedy(5))


def test_the_four_forms_of_generate_say_the_same(engine: InferenceEngine) -> None:
    asked, params = ["the cat", "a", "the lazy dog"], greedy(8)
    alone = [engine.generate(prompt, params) for prompt in asked]
    assert ["".join(engine.stream_generate(prompt, params)) for prompt in asked] == alone
    assert engine.generate_batch(asked, params, max_batch_size=2) == alone
    pieces = list(engine.stream_generate_batch(asked, params))
    assert ["".join(p for i, p in pieces if i == row) for row in range(3)] == alone


def test_a_stream_given_up_frees_its_blocks(engine: InferenceEngine) -> None:
    stream = engine.stream_generate("the cat", greedy(50))
    next(stream)
    assert engine.cache.pool.used > 0
    stream.close()  # type: ignore[attr-defined]
    assert engine.cache.pool.used == 0


def test_a_cache_held_by_another_scheduler_is_an_error_not_a_hang() -> None:
    engine = InferenceEngine.from_model(tiny_llama(), block_size=4, kv_cache_tokens=40)
    other = OnlineScheduler(engine)
    other.add_request(prompts(36)[0], params=greedy(100))
    other.step()
    offline = OfflineScheduler(engine)
    offline.add_request(prompts(20)[0])
    with pytest.raises(RuntimeError, match="another scheduler"):
        offline.run()


@pytest.mark.parametrize("run_by", ["compiled", "compiled, bfloat16", "transformers"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "mistral"])
def test_logits_are_bitwise_the_same_in_any_company(
    architecture: str, run_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CPU batch size, chunking and neighbours leave no trace in the last bit.

    Transformers' code promises that in float32 only.

    Not so for mixtures of experts: how many rows an expert gets depends on the whole batch.
    """
    if run_by == "transformers":
        monkeypatch.setattr(library, "load", lambda: library.Loaded(None, "a test"))
    elif not native.available():
        pytest.skip("the installation could not compile the decoder")
    dtype = torch.bfloat16 if run_by.endswith("bfloat16") else torch.float32
    engine = InferenceEngine.from_model(build(architecture).to(dtype), kv_cache_tokens=4096)
    asked = prompts(3, 20, 9, 41, 17, 33)

    def run(batch: int, budget: int) -> dict[str, list[torch.Tensor]]:
        scheduler = OfflineScheduler(engine, batch, max_step_tokens=budget)
        for i, prompt in enumerate(asked):
            scheduler.add_request(prompt, request_id=str(i), params=greedy(8))
        return logits_of(engine, scheduler.run)

    alone = run(1, 512)
    for batch, budget in ((2, 512), (6, 512), (6, 11), (3, 5)):
        company = run(batch, budget)
        for name, rows in alone.items():
            assert torch.equal(torch.stack(rows), torch.stack(company[name])), (name, batch)


@pytest.mark.parametrize("budget", [512, 40])
def test_what_requests_begin_with_is_computed_once(engine: InferenceEngine, budget: int) -> None:
    # given: three of one prompt, as the choices of a request are, and one that goes on otherwise
    forget_prefixes(engine)
    asked = prompts(100)[0]
    apart = [*asked[:70], *asked[:20]]
    params = [
        greedy(6),
        *(SamplingParams(max_new_tokens=6, temperature=0.9, seed=n) for n in range(2)),
        greedy(6),
    ]
    requests = [*zip([asked] * 3, params, strict=False), (apart, params[3])]
    scheduler = OnlineScheduler(engine, 8, budget)
    # when
    names = [scheduler.add_request(prompt, params=one) for prompt, one in requests]
    outputs = drain(scheduler)
    # then: whole blocks of 16 of it are found
    cached = [outputs[name][-1].cached_tokens for name in names]
    assert cached == [0, 96, 96, 64]
    for name, (prompt, one) in zip(names, requests, strict=True):
        assert tokens(outputs[name]) == tokens(run_alone(engine, prompt, one))


def test_a_request_waits_for_no_beginning_of_another_salt(engine: InferenceEngine) -> None:
    # given
    forget_prefixes(engine)
    asked = prompts(100)[0]
    scheduler = OnlineScheduler(engine, 8, 512)
    # when
    for salt in ("ann", "bob"):
        session = engine.new_session(asked, params=greedy(3), cache_salt=salt)
        scheduler.add_session(session)
    scheduler.step()
    # then
    assert scheduler.stats().batch_size == 2
    drain(scheduler)


def test_a_request_goes_on_when_the_one_that_it_waited_for_is_given_up(
    engine: InferenceEngine,
) -> None:
    # given
    forget_prefixes(engine)
    asked = prompts(200)[0]
    scheduler = OnlineScheduler(engine, 8, 40)
    first, second = (scheduler.add_request(asked, params=greedy(4)) for _ in range(2))
    scheduler.step()
    assert scheduler.stats().waiting == 1
    # when
    scheduler.abort(first)
    # then
    (last,) = [*drain(scheduler)[second]][-1:]
    assert last.finish_reason == "length"
    assert last.cached_tokens == 32
