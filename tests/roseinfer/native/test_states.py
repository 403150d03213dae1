"""Layers with a state in the compiled decoder: the tokens of transformers, and states behind each
token."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from roseinfer import InferenceEngine
from roseinfer.model import families
from roseinfer.model.mixers import MixerParts, find_mixer
from roseinfer.sessions.session import Chunk
from tests.roseinfer.models import (
    answers,
    build,
    check_left_in_order,
    engine_run_by,
    needs_decoder,
    prompts,
    reference,
)
from tests.roseinfer.native.kinds import wide

pytestmark = needs_decoder


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen3_5", {"linear_conv_kernel_dim": 2, "linear_value_head_dim": 200}),
        ("qwen3_5", {"linear_num_key_heads": 4, "attention_bias": True, "head_dim": 20}),
        ("qwen3_next", {"num_key_value_heads": 4, "mlp_only_layers": [1]}),
        ("olmo_hybrid", {"linear_allow_neg_eigval": True}),
        ("lfm2", {"conv_bias": True, "hidden_size": 600, "num_attention_heads": 6}),
        ("lfm2", {"conv_L_cache": 7}),
        ("lfm2_moe", {"conv_bias": True, "norm_topk_prob": True}),
        ("granitemoehybrid", {"mamba_n_groups": 1, "mamba_conv_bias": False}),
        ("granitemoehybrid", {"num_local_experts": 0, "mamba_proj_bias": True}),
        ("bamba", {"time_step_limit": (0.1, 0.3), "mamba_d_head": 32, "mamba_n_heads": 8}),
        ("nemotron_h", {"hybrid_override_pattern": "M*M-E", "use_bias": True, "mlp_bias": True}),
        ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": True}),
        ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
        ("falcon_h1", {"attention_in_multiplier": 1.0, "attention_bias": True, "mlp_bias": True}),
        ("mamba2", {"n_groups": 1, "use_bias": True, "use_conv_bias": False}),
    ],
)
def test_odd_shapes_give_the_tokens_of_transformers(
    architecture: str, changes: dict[str, Any], threads: int
) -> None:
    # given
    model = wide(architecture, torch.float32, initializer_range=0.3, **changes)
    for name, tensor in model.named_buffers():
        if name.endswith("expert_bias"):
            torch.nn.init.normal_(tensor, 0.0, 0.5, generator=torch.Generator().manual_seed(3))
    asked = prompts(3, 20, 9, 61)
    # With a cache transformers bounds steps in a prompt only.
    expected = [reference(model, prompt, 12, use_cache=False) for prompt in asked]
    torch.set_num_threads(threads)  # the conftest sets it back
    # when
    engine = engine_run_by("compiled", model, block_size=8, kv_cache_tokens=1024)
    # then
    assert answers(engine, asked, 12, max_batch_size=4) == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"input": [torch.nn.Linear(64, 9)]}, "input has the shapes"),
        ({"groups": 4}, "6 heads are no whole groups of 4"),
        ({"keys": 11}, "the state of 138 channels and 6 heads is"),
        ({"step_bias": torch.zeros(5)}, "decays are not those of 6 heads"),
        ({"norm": torch.ones(78).double()}, "the norm of what the heads make is not 78 float32"),
        ({"normed": 5}, "a norm over 5 of 78 values"),
        ({"taps": torch.ones(2, 138)}, "the state of 138 channels and 6 heads is"),
    ],
)
def test_what_the_library_cannot_hold_is_left_to_transformers(
    changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_wrong(layer: Any) -> MixerParts | None:
        mixer = find_mixer(layer)
        return mixer and MixerParts(**{name: getattr(mixer, name) for name in _FIELDS} | changes)

    monkeypatch.setattr(families, "find_mixer", find_wrong)
    engine = InferenceEngine.from_model(build("qwen3_5"), kv_cache_tokens=64)
    assert "transformers' own code" in engine.decoder_description
    assert reason in engine.decoder_description


_FIELDS = tuple(MixerParts.__dataclass_fields__)


@pytest.mark.parametrize(
    ("writes", "slot"),
    [
        ([(3, 99)], 0),
        ([(3, -1)], 0),
        ([(4, 1)], 0),
        ([(0, 1)], 0),
        ([(1, 1), (5, 1)], 0),
        ([(3, 1)], 99),
    ],
)
def test_states_outside_of_the_cache_are_refused(
    writes: list[tuple[int, int]], slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    engine = engine_run_by("compiled", build("qwen3_5"), kv_cache_tokens=64)
    session = engine.new_session([1, 2, 3])
    session.blocks = engine.cache.pool.allocate(1)
    session.state.slot = slot
    monkeypatch.setattr(type(session.state), "writes", lambda *_: writes)
    # when, then
    with pytest.raises(ValueError, match="a slot for states does not exist"):
        engine.forward([Chunk(session, 3)])


def test_states_are_written_where_drafts_end() -> None:
    """Each is the one behind as many tokens, though the own slot is written among them."""
    # given
    engine = engine_run_by("compiled", build("qwen3_5"), kv_cache_tokens=256)
    (prompt,) = prompts(12)

    def states(cut: int) -> list[Tensor]:
        """Behind the prompt's first so many tokens."""
        session = engine.new_session(prompt[:cut])
        session.reuse_prefix(engine.cache.pool)
        session.blocks += engine.cache.pool.allocate(1)
        engine._runner.run([Chunk(session, cut)])
        tensors = (*engine.cache.inputs, *engine.cache.sums)
        found = [tensor[session.state.slot].clone() for tensor in tensors if tensor is not None]
        session.release_blocks(engine.cache.pool)
        return found

    expected = [states(cut) for cut in range(9, 13)]
    # when: nine tokens and three drafts in one step
    session = engine.new_session(prompt[:9])
    session.reuse_prefix(engine.cache.pool)
    session.blocks += engine.cache.pool.allocate(1)
    drafted = session.state.take_drafts(engine.cache.pool, 3)
    assert drafted == 3
    engine._runner.run([Chunk(session, 12, tuple(prompt[9:]))])
    slots = [session.state.slot, *session.state._drafts]
    # then
    tensors = [x for x in (*engine.cache.inputs, *engine.cache.sums) if x is not None]
    for slot, behind in zip(slots, expected, strict=True):
        for tensor, other in itertools.zip_longest(tensors, behind):
            assert torch.equal(tensor[slot], other)
    session.release_blocks(engine.cache.pool)
    check_left_in_order(engine)
