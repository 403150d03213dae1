"""The model's own head for further tokens: it drafts what transformers' code would, and whatever it
drafts, the tokens are those that come without it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from roseinfer.checkpoints.draft_layer import DraftLayer
from roseinfer.checkpoints.loading import load
from roseinfer.demo_model import MODEL_PATH
from roseinfer.execution.draft_head import Counts, DraftHead
from roseinfer.sampling.sampler import sample_tokens
from roseinfer.sessions.own_drafts import MAX_OWN_DRAFTS, WINDOW, OwnDrafts
from roseinfer.sessions.session import InferenceSession, SamplingRequest
from tests.roseinfer.clocks import Machine
from tests.roseinfer.draft_heads import FAMILIES, save_with_head
from tests.roseinfer.models import (
    check_left_in_order,
    drain,
    forget_prefixes,
    greedy,
    needs_decoder,
    prompts,
    run_together,
    tokens,
)
from tests.roseinfer.native.kinds import SIZES
from tests.roseinfer.sessions.test_resume import PARAMS

pytestmark = needs_decoder

LONG = {"max_position_embeddings": 1024}


def engine_of(folder: Path, **options: object) -> InferenceEngine:
    return InferenceEngine(folder, **{"kv_cache_tokens": 2048, "own_drafts": True, **options})


def believed(own: OwnDrafts, accepted: int) -> None:
    """In the place of `OwnDrafts.record`: a head that is never found wrong drafts at every step."""
    own.drafted = 0


def speculating(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch, batch: int, step: int = 64
) -> OnlineScheduler:
    """On a machine where a pass of the head takes no time."""
    machine = Machine(engine, monkeypatch)
    return OnlineScheduler(engine, batch, step, speculation=True, clock=machine.clock)


def heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[list[int], InferenceSession, tuple[int, ...]]]:
    """What the head drafts from now on, and behind which tokens of which session."""
    heard, draft = list[tuple[list[int], InferenceSession, tuple[int, ...]]](), DraftHead.draft

    def listen(head: DraftHead, counts: Counts) -> dict[InferenceSession, tuple[int, ...]]:
        made = draft(head, counts)
        heard.extend((list(session.tokens), session, made[session]) for session in counts)
        return made

    monkeypatch.setattr(DraftHead, "draft", listen)
    return heard


@torch.inference_mode()
def drafts_of_transformers(
    layer: DraftLayer, ids: list[int], hidden: Tensor, session: InferenceSession, count: int
) -> tuple[int, ...]:
    """The drafts behind `ids`, of the hidden states [n, H] behind the token before each. They are
    drawn with the numbers that draw the session's own tokens."""
    made, model = list[int](), layer.model
    position = 1 + len(ids) - session.prompt_length
    for further in range(count):
        ids, hidden = ids[-WINDOW:], hidden[-WINDOW:]
        embedded = layer.model.model.embed_tokens(torch.tensor(ids))
        both = torch.cat([layer.embedding(embedded), layer.hidden(hidden)], dim=-1)
        inputs = layer.projection(both)[None]
        states = model.model(inputs_embeds=inputs, use_cache=False).last_hidden_state[0]
        request = SamplingRequest(session.params, position + further)
        made += sample_tokens(model.lm_head(states[-1:]), [request]).tolist()
        ids, hidden = [*ids, made[-1]], torch.cat([hidden, states[-1:]])
    return tuple(made)


@pytest.mark.parametrize(
    ("architecture", "count", "threads"),
    [*((family, 30, 1) for family in FAMILIES), ("qwen3_5", 3 * WINDOW, 1), ("glm4_moe", 30, 2)],
)
def test_it_drafts_what_transformers_makes_of_the_layer(
    architecture: str, count: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its window: a long answer goes around its cache several times."""
    # given the layer in transformers' code, and hidden states as transformers has them
    save_with_head(tmp_path, architecture, **LONG)
    plain = load(tmp_path, None, "cpu", None, own_drafts=True)
    layer = plain.draft_layer
    assert layer is not None
    for model in (plain.model, layer.model):
        model.set_attn_implementation("eager")
    engine = engine_of(tmp_path)
    monkeypatch.setattr(OwnDrafts, "record", believed)
    heard = heard_of(monkeypatch)
    torch.set_num_threads(threads)  # the conftest sets it back
    # when prompts of several lengths are answered, in steps that cut them
    scheduler = speculating(engine, monkeypatch, 4, 24)
    params = [greedy(count, temperature=2.0, seed=seed) for seed in range(3)]
    run_together(scheduler, prompts(5, 61, 33), params)
    # then each draft is what transformers drafts behind the same tokens
    assert len(heard) > 10
    for ids, own, drafted in [*heard[:: max(1, len(heard) // 12)], *heard[-3:]]:
        with torch.inference_mode():
            output = plain.model.model(input_ids=torch.tensor([ids[:-1]]), use_cache=False)
        hidden = output.last_hidden_state[0]
        assert drafted == drafts_of_transformers(layer, ids[1:], hidden, own, len(drafted))


def mixed(count: int) -> list[tuple[list[int], SamplingParams]]:
    """Requests of all kinds, of several lengths."""
    kinds = list(PARAMS.values())
    asked = prompts(*(3 + 7 * n % 41 for n in range(count)))
    changes = [{"seed": n, "max_new_tokens": 14 + n % 40} for n in range(count)]
    return [
        (prompt, SamplingParams(**{**kinds[n % len(kinds)].model_dump(), **changes[n]}))
        for n, prompt in enumerate(asked)
    ]


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("architecture", ["qwen3_5", "glm4_moe_lite"])
@pytest.mark.parametrize("sees_last_token_only", [False, True])
def test_the_tokens_are_those_without_it(
    architecture: str,
    sees_last_token_only: bool,
    weights: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether its drafts are right or wrong, all are followed: in batches, behind cached prefixes,
    after a preemption, and where another worker goes on."""
    # given
    save_with_head(
        tmp_path, architecture, sees_last_token_only=sees_last_token_only, **SIZES[architecture]
    )
    dtype = None if weights is None else "bfloat16"
    engine = engine_of(tmp_path, weights=weights, dtype=dtype, kv_cache_tokens=136)
    requests = mixed(60)
    asked, params = [prompt for prompt, _ in requests], [own for _, own in requests]
    plain = OnlineScheduler(engine, 8, 64)
    expected = [tokens(own) for own in run_together(plain, asked, params)]
    forget_prefixes(engine)
    # when
    monkeypatch.setattr(OwnDrafts, "record", believed)
    scheduler = speculating(engine, monkeypatch, 12, 96)
    # then
    assert [tokens(own) for own in run_together(scheduler, asked, params)] == expected
    stats = scheduler.stats()
    assert stats.drafted_tokens > stats.generated_tokens / 2
    assert stats.preemptions > 0
    if sees_last_token_only:
        assert stats.accepted_tokens > stats.drafted_tokens / 3
    else:
        assert stats.accepted_tokens < stats.drafted_tokens / 3
    # and
    names = [
        scheduler.add_request(prompt, params=own, generated_ids=ids[: len(ids) // 2])
        for prompt, own, ids in zip(asked, params, expected, strict=True)
    ]
    outputs = drain(scheduler)
    for name, ids in zip(names, expected, strict=True):
        assert tokens(outputs.get(name, [])) == ids[len(ids) // 2 :]
    check_left_in_order(engine)


def test_a_head_that_is_right_takes_a_third_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    save_with_head(tmp_path, "qwen3_5", sees_last_token_only=True, **LONG)
    engine = engine_of(tmp_path)
    scheduler = speculating(engine, monkeypatch, 1)
    # when: the text does not repeat for a while
    outputs = run_together(scheduler, [[40, 41, 42]], [greedy(60, temperature=0.7, seed=1)])[0]
    # then
    assert len(outputs) < 60 / 3
    assert max(len(output.token_ids) for output in outputs) <= 1 + MAX_OWN_DRAFTS


def test_that_of_a_gguf_file_drafts_beside_the_file_s_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    from gguf import GGMLQuantizationType

    from tests.support.gguf_files import write_gguf

    # given
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    sizes = {**SIZES["qwen3_5"], "vocab_size": len(tokenizer)}
    save_with_head(tmp_path, "qwen3_5", sees_last_token_only=True, **sizes)
    plain = load(tmp_path, None, "cpu", None, own_drafts=True)
    path, kind = tmp_path / "model.gguf", GGMLQuantizationType.Q8_0
    write_gguf(path, plain.model, tokenizer, kind, draft_layer=plain.draft_layer)
    engine = InferenceEngine(path, weights="file", own_drafts=True, kv_cache_tokens=2048)
    asked, params = prompts(5, 20, 33), [greedy(40, temperature=0.7, seed=n) for n in range(3)]
    expected = [tokens(own) for own in run_together(OnlineScheduler(engine, 3), asked, params)]
    # when
    scheduler = speculating(engine, monkeypatch, 3)
    # then
    assert [tokens(own) for own in run_together(scheduler, asked, params)] == expected
    stats = scheduler.stats()
    assert stats.accepted_tokens > stats.drafted_tokens / 2 > 0


def test_one_whose_weights_cannot_be_brought_to_a_format_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a weight beyond the scales of a format of 8 bits
    save_with_head(tmp_path, "qwen3_5", **SIZES["qwen3_5"])
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["mtp.layers.0.mlp.down_proj.weight"][3, 5] = 1e8
    save_file(tensors, path, metadata={"format": "pt"})
    engine = engine_of(tmp_path, weights="int8", dtype="bfloat16")
    expected = run_alone_by(OnlineScheduler(engine, 1), 60)
    # when
    monkeypatch.setattr(OwnDrafts, "record", believed)
    scheduler = speculating(engine, monkeypatch, 1)
    # then
    assert run_alone_by(scheduler, 60) == expected
    assert scheduler.stats().drafted_tokens > 0


def test_a_head_that_is_wrong_or_slow_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_with_head(tmp_path, "qwen3_5", **LONG)
    engine = engine_of(tmp_path)
    # given a head of random numbers
    scheduler = speculating(engine, monkeypatch, 1)
    run_alone_by(scheduler, 400)
    # then it is asked a few times, and now and then again
    assert scheduler.stats().drafted_tokens < 400 / 4
    # given one that is believed and takes as long as a step
    machine = Machine(engine, monkeypatch)
    draft = DraftHead.draft

    def slowly(head: DraftHead, counts: Counts) -> dict[InferenceSession, tuple[int, ...]]:
        machine.now += 0.01 * max(counts.values())
        return draft(head, counts)

    monkeypatch.setattr(DraftHead, "draft", slowly)
    monkeypatch.setattr(OwnDrafts, "record", believed)
    scheduler = OnlineScheduler(engine, 1, speculation=True, clock=machine.clock)
    run_alone_by(scheduler, 400)
    # then it is asked once, and now and then again
    assert scheduler.stats().drafted_tokens <= MAX_OWN_DRAFTS + 400 / 40


def run_alone_by(scheduler: OnlineScheduler, count: int) -> list[int]:
    """A text that does not repeat."""
    (outputs,) = run_together(scheduler, [[40, 41, 42]], [greedy(count, temperature=5.0, seed=1)])
    return tokens(outputs)
