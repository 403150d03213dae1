"""vLLM behind the worker's interface, beside roseinfer's own engine."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rose.errors import InvalidParameter, PromptTooLong
from rose.protocol import JobSpec
from rose.sampling import SamplingParams
from rose_worker.settings import WorkerSettings
from tests.support.engines import (
    FEATURES,
    Answer,
    all_logprobs,
    answers,
    collect,
    jobs,
    merged_with,
)

# The warnings are vLLM's own.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def assert_same(got: Mapping[str, Answer], wanted: Mapping[str, Answer]) -> None:
    assert got.keys() == wanted.keys()
    for job_id, answer in wanted.items():
        mine = got[job_id]
        assert mine.token_ids == answer.token_ids, job_id
        assert (mine.text, mine.reason, mine.error) == (answer.text, answer.reason, answer.error)
        for one, other in zip(all_logprobs(mine), all_logprobs(answer), strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=1e-3)


def test_every_parameter_brings_the_same_tokens_as_in_the_other_engine(
    vllm: Any, rose: Any
) -> None:
    assert vllm.model.dtype == rose.model.dtype
    wanted = answers(rose, jobs(FEATURES))
    assert {answer.reason for answer in wanted.values()} == {"length", "stop"}
    assert_same(answers(vllm, jobs(FEATURES)), wanted)


@pytest.mark.parametrize("steps", [1, 13])
def test_what_one_engine_has_begun_the_other_goes_on_with(vllm: Any, rose: Any, steps: int) -> None:
    # given
    wanted = answers(rose, jobs(FEATURES))
    for first, second in ((rose, vllm), (vllm, rose), (vllm, vllm)):
        # when
        begun = answers(first, jobs(FEATURES), steps=steps)
        running = [job for job in jobs(FEATURES) if begun[job.id].reason is None]
        assert any(answer.token_ids for answer in begun.values())
        got = begun | answers(second, running, begun)
        # then
        assert_same(got, wanted)


def test_a_job_that_had_ended_is_reported_without_a_step(vllm: Any, rose: Any) -> None:
    # given: an earlier worker logged the last token and died
    (job,) = jobs([{}], 5)
    done = answers(rose, [job])
    # when
    vllm.add(vllm.prepare(job, done[job.id].token_ids))
    (output,) = vllm.step()
    # then
    assert (output.index, output.token_ids, output.finish_reason) == (5, (), "length")
    assert not vllm.has_work


def test_a_job_that_runs_alone_changes_nothing_for_the_others(vllm: Any, rose: Any) -> None:
    # given
    wanted = answers(rose, jobs(FEATURES))
    specs = jobs(FEATURES)
    done = {spec.id: Answer() for spec in specs}
    for spec in specs:
        vllm.add(vllm.prepare(spec, ()))
    for _ in range(5):
        collect(vllm, done)
    # when
    before = {job_id: len(answer.token_ids) for job_id, answer in done.items()}
    for _ in range(3):
        collect(vllm, done, only="job-1")
    after = {job_id: len(answer.token_ids) for job_id, answer in done.items()}
    # then
    assert {job_id for job_id in done if after[job_id] > before[job_id]} == {"job-1"}
    while vllm.has_work:
        collect(vllm, done)
    assert_same(done, wanted)


def test_jobs_that_the_kv_cache_cannot_hold_are_preempted_and_change_nothing(
    vllm: Any, rose: Any
) -> None:
    # given
    features = [{"temperature": 1.0, "repetition_penalty": 1.1, "ignore_eos": True}] * 8
    before = vllm.stats()
    # when
    got = answers(vllm, jobs(features, 150))
    # then
    after = vllm.stats()
    assert after.preemptions > before.preemptions
    assert after.generated_tokens - before.generated_tokens == 8 * 150
    assert_same(got, answers(rose, jobs(features, 150)))


def test_the_gauges_follow_the_jobs(vllm: Any) -> None:
    # given
    idle = vllm.stats()
    assert (idle.running, idle.waiting, idle.kv_blocks_used) == (0, 0, 0)
    assert (vllm.capacity, idle.capacity, idle.kv_blocks_total) == (8, 8, 24)
    prompt = list(range(40, 120))
    # when: the second one finds the blocks of the first
    specs = [JobSpec(id=f"same-{n}", prompt=prompt) for n in range(2)]
    for spec in specs:
        vllm.add(vllm.prepare(spec, ()))
        vllm.step()
    busy = vllm.stats()
    # then
    assert (busy.running, busy.batch_size) == (2, 2)
    assert busy.kv_blocks_used >= 3
    assert busy.prompt_tokens - idle.prompt_tokens == 160
    assert busy.generated_tokens - idle.generated_tokens == 3
    assert busy.prefix_hit_tokens - idle.prefix_hit_tokens == 64
    assert busy.step_times.forward > 0
    for spec in specs:
        vllm.abort(spec.id)
    assert (vllm.stats().running, vllm.stats().kv_blocks_used, vllm.has_work) == (0, 0, False)


def test_a_result_says_how_much_of_its_prompt_was_cached(vllm: Any) -> None:
    prompt = list(range(200, 280))
    outputs = []
    for n in range(2):
        job = JobSpec(id=f"cached-{n}", prompt=prompt, sampling=SamplingParams(max_new_tokens=1))
        vllm.add(vllm.prepare(job, ()))
        outputs += vllm.step()
    assert [output.cached_tokens for output in outputs] == [0, 64]


def test_prefixes_are_shared_within_a_salt_only(vllm: Any) -> None:
    # given
    prompt = list(range(300, 380))
    # when
    cached = []
    for n, salt in enumerate(("a/", "b/", "", "a/")):
        params = SamplingParams(max_new_tokens=1)
        job = JobSpec(id=f"salted-{n}", prompt=prompt, sampling=params, cache_salt=salt)
        vllm.add(vllm.prepare(job, ()))
        cached += [output.cached_tokens for output in vllm.step()]
    # then
    assert cached == [0, 0, 0, 64]


def test_an_adapter_answers_as_a_model_that_it_was_merged_into(
    vllm: Any, adapters: Mapping[str, Path], tmp_path: Path
) -> None:
    # given
    from rose_worker.rose_engine import RoseEngine

    plain = jobs(FEATURES[:6])
    base = answers(vllm, plain)
    for name, folder in adapters.items():
        merged = merged_with(folder, tmp_path / name)
        wanted = answers(
            RoseEngine(WorkerSettings(model=str(merged), max_context=256, device="cpu")), plain
        )
        # when
        got = answers(vllm, [job.model_copy(update={"adapter": name}) for job in plain])
        # then
        assert_same(got, wanted)
        assert got != base


def test_adapters_and_the_model_itself_share_a_batch(vllm: Any) -> None:
    # given
    plain = jobs([{"temperature": 0.8, "seed": 3}] * 6, 20)
    names = [None, "gruff", "kind"] * 2
    mixed = [
        job.model_copy(update={"adapter": name}) for job, name in zip(plain, names, strict=True)
    ]
    # when
    alone = {job.id: answers(vllm, [job])[job.id] for job in mixed}
    # then
    assert_same(answers(vllm, mixed), alone)


def test_adapters_are_part_of_what_is_served(vllm: Any, rose: Any) -> None:
    assert vllm.model.adapters == ("gruff", "kind")
    assert vllm.model.engine == "vllm"
    # Their workers may not share a queue: the other engine could not answer such a job.
    assert vllm.model.fingerprint != rose.model.fingerprint


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"adapter": "rude"}, InvalidParameter, "no 'rude' here, only: gruff, kind"),
        ({"sampling": SamplingParams(regex="a(")}, InvalidParameter, "regex: "),
        ({"sampling": SamplingParams(logit_bias=((5000, 1.0),))}, InvalidParameter, "5000"),
        ({"prompt": [7] * 256}, PromptTooLong, "send at most 255"),
    ],
)
def test_what_it_cannot_run_is_refused(
    vllm: Any, wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    job = JobSpec(id="wrong", prompt="Once").model_copy(update=wrong)
    with pytest.raises(error, match=message):
        vllm.prepare(job, ())


def test_a_request_ends_where_its_context_does(vllm: Any, rose: Any) -> None:
    job = JobSpec(
        id="long",
        prompt=[7] * 250,
        sampling=SamplingParams(max_new_tokens=50, ignore_eos=True, temperature=1.0),
    )
    got = answers(vllm, [job])
    assert len(got["long"].token_ids) == 6
    assert_same(got, answers(rose, [job]))


def test_a_grammar_that_becomes_too_complex_ends_its_own_request(vllm: Any, rose: Any) -> None:
    # given: compiles, and has more possibilities after the first brace than the parser allows
    wide = {"type": "object", "properties": {f"k{i}": {"pattern": "^a*$"} for i in range(1200)}}
    specs = jobs([{"json_schema": json.dumps(wide)}, {"temperature": 1.0}], 10)
    # when
    wanted = answers(rose, specs)
    # then
    assert [wanted[spec.id].reason for spec in specs] == ["error", "length"]
    assert_same(answers(vllm, specs), wanted)
