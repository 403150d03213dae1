"""What the engine cannot do it refuses at load, with one line that says why."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rose.errors import ConfigurationError, ModelNotFound, RoseError, UnsupportedModel
from roseinfer import InferenceEngine, SamplingParams
from roseinfer.execution import cache_size
from tests.roseinfer.models import (
    build,
    byte_tokenizer,
    construct,
    greedy,
    prompts,
    reference,
    run_alone,
    tiny_llama,
    tokens,
)

_GQA = {"num_key_value_heads": 2, "intermediate_size": 96}


def refusal(build: Any) -> str:
    with pytest.raises(RoseError) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("config", "model", "extra", "reason"),
    [
        ("MambaConfig", "MambaForCausalLM", {}, "state of its MambaMixer"),
        (
            "KimiLinearConfig",
            "KimiLinearForCausalLM",
            _GQA,
            "state of its KimiLinearDeltaAttention",
        ),
        ("MiniMaxConfig", "MiniMaxForCausalLM", _GQA, "layers with a state"),
        ("Llama4TextConfig", "Llama4ForCausalLM", _GQA, "chunked_attention"),
        ("FalconConfig", "FalconForCausalLM", {}, "bypass"),
        ("BloomConfig", "BloomForCausalLM", {}, "bypass"),
        ("GPTJConfig", "GPTJForCausalLM", {"n_positions": 128, "rotary_dim": 8}, "bypass"),
        ("JambaConfig", "JambaForCausalLM", _GQA, "state of its JambaMambaMixer"),
    ],
)
def test_architectures(config: str, model: str, extra: dict[str, Any], reason: str) -> None:
    message = refusal(lambda: InferenceEngine.from_model(construct(config, model, **extra)))
    assert reason in message
    assert "model type" in message


def unread_window() -> Any:
    model = tiny_llama()
    model.config.sliding_window = 4  # llama's layers know nothing of windows
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (unread_window, "sliding window of 4"),
        # a window without a token before
        *(
            (lambda window=window: build("mistral", sliding_window=window), f"{window} leaves")
            for window in (1, 0, -3)
        ),
        # a family whose configuration has no such field, so nobody has checked it
        (lambda: build("gpt2", sliding_window="wide"), "'wide'"),
        # a norm that may divide by zero
        (lambda: build("llama", rms_norm_eps=0.0), "its rms_norm_eps 0.0"),
        (lambda: build("gpt2", layer_norm_epsilon=0.0), "its layer_norm_epsilon 0.0"),
        (lambda: tiny_llama(max_position_embeddings=1), "no room for a prompt and a token"),
    ],
)
def test_configurations(make: Callable[[], Any], reason: str) -> None:
    assert reason in refusal(lambda: InferenceEngine.from_model(make()))


def test_a_window_that_is_turned_off_is_none() -> None:
    """As the model's layers say. transformers' generate drops what is behind the window from its
    cache all the same, and then differs from the model's own logits."""
    # given
    model = build("llama", sliding_window=8, use_sliding_window=False)
    prompt = prompts(20)[0]
    ids = reference(model, prompt, 10, use_cache=False)
    # when
    engine = InferenceEngine.from_model(model)
    # then
    assert tokens(run_alone(engine, prompt, greedy(10))) == ids


def test_attention_that_differs_from_the_models_own() -> None:
    model = tiny_llama()
    rotary = model.model.rotary_emb
    eager = rotary.forward

    def skewed(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        # As if the model's positions depended on the attention implementation.
        shift = 3 if model.config._attn_implementation != "eager" else 0
        return eager(x, position_ids * (1 + shift))

    rotary.forward = skewed
    assert "logits differ" in refusal(lambda: InferenceEngine.from_model(model))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number(value: float) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = value
    message = refusal(lambda: InferenceEngine.from_model(model))
    assert "logits in float32 are not finite" in message


def test_more_layers_than_memory_has_room_for(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    assert "1,000,000,000 layers" in refusal(lambda: InferenceEngine(str(tmp_path)))


@pytest.mark.parametrize("kv_cache_tokens", [None, 500])
def test_a_context_that_no_table_can_hold_ends_where_the_cache_does(
    kv_cache_tokens: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    # given: its tables of angles would take thousands of gigabytes
    model = tiny_llama(max_position_embeddings=2**40)
    # when
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_size, "free_memory", lambda: 2**22)
        engine = InferenceEngine.from_model(model, kv_cache_tokens=kv_cache_tokens)
    # then
    assert engine.context_length == (512 if kv_cache_tokens else 2048)
    assert "not at the model's 1099511627776" in caplog.text


def test_a_layer_that_attends_twice() -> None:
    model = tiny_llama()
    model.model.layers[1].self_attn = model.model.layers[0].self_attn
    assert "more than once" in refusal(lambda: InferenceEngine.from_model(model))


def test_length_dependent_rope_caps_the_context() -> None:
    model = tiny_llama(
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8,
            "original_max_position_embeddings": 64,
        }
    )
    assert InferenceEngine.from_model(model).context_length == 64


def test_a_length_that_changes_the_rope_before_the_probe_ends() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = tiny_llama(rope_parameters={**rope, "original_max_position_embeddings": 16})
    assert InferenceEngine.from_model(model).context_length == 16


@pytest.mark.parametrize("positions", [2, 3, 10])
@pytest.mark.parametrize("architecture", ["gpt2", "opt"])
def test_a_model_with_fewer_positions_than_the_probe_has(architecture: str, positions: int) -> None:
    model = build(architecture, max_position_embeddings=positions, n_positions=positions)
    prompt, count = [5] * (positions // 2), positions - positions // 2
    wanted = reference(model, prompt, count)
    engine = InferenceEngine.from_model(model, kv_cache_tokens=64)
    assert engine.context_length == positions
    assert tokens(run_alone(engine, prompt, greedy(count))) == wanted


def test_max_context_beyond_the_model() -> None:
    with pytest.raises(ConfigurationError, match="max_context=1000"):
        InferenceEngine.from_model(tiny_llama(), max_context=1000)


@pytest.mark.parametrize("options", [{"block_size": 0}, {"kv_cache_tokens": 0}])
def test_impossible_cache(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        InferenceEngine.from_model(tiny_llama(), **options)  # type: ignore[arg-type]


def test_a_cache_that_no_memory_of_this_machine_holds() -> None:
    def build_engine() -> InferenceEngine:
        return InferenceEngine.from_model(tiny_llama(), kv_cache_tokens=10**12)

    assert "kv_cache_tokens=1000000000000 takes" in refusal(build_engine)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def load(path: Path, **options: Any) -> InferenceEngine:
    return InferenceEngine(path, device="cpu", kv_cache_tokens=512, **options)


def test_a_folder_loads(checkpoint: Path) -> None:
    assert load(checkpoint, dtype="bfloat16").model.dtype == torch.bfloat16
    engine = load(checkpoint)
    assert engine.model.dtype == torch.float32
    assert engine.eos_token_ids == {257}
    assert engine.model_name == checkpoint.name
    assert engine.max_bytes_per_token == 5  # "<bos>"


def test_unknown_dtype_and_device(checkpoint: Path) -> None:
    with pytest.raises(ConfigurationError, match="int3"):
        load(checkpoint, dtype="int3")
    with pytest.raises(ConfigurationError, match="abacus"):
        InferenceEngine(checkpoint, device="abacus")


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (("model.safetensors",), "no safetensors weights"),
        (("tokenizer.json", "tokenizer_config.json"), "no tokenizer"),
        (("config.json",), "no config.json"),
    ],
)
def test_missing_files(checkpoint: Path, lost: tuple[str, ...], reason: str) -> None:
    # Pickled weights can run code: they do not count.
    torch.save(tiny_llama().state_dict(), checkpoint / "pytorch_model.bin")
    for name in lost:
        (checkpoint / name).unlink()
    with pytest.raises(ModelNotFound, match=reason):
        load(checkpoint)


@pytest.mark.parametrize(
    ("beside", "reason"),
    [("model.Q8_0.gguf", "name a GGUF file itself"), ("adapter_config.json", "LoRA adapter")],
)
def test_a_folder_with_something_else(tmp_path: Path, beside: str, reason: str) -> None:
    (tmp_path / beside).write_text("{}")
    assert reason in refusal(lambda: load(tmp_path))


@pytest.mark.parametrize(
    "file",
    ["weights.bin", "../elsewhere/model.safetensors", "/etc/passwd", 7, "deeper/model.safetensors"],
)
def test_an_index_that_names_something_else_than_safetensors(checkpoint: Path, file: Any) -> None:
    # given: a good model, but in a pickle
    weights = tiny_llama().state_dict()
    torch.save(weights, checkpoint / "weights.bin")
    (checkpoint / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, file)}
    # when
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    # then
    assert re.search("only .*safetensors|is no index", refusal(lambda: load(checkpoint)))


@pytest.mark.parametrize("index", ["", "[1]", "{}", '{"weight_map": 3}', "[" * 100_000])
def test_an_index_that_is_none(checkpoint: Path, index: str) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(index)
    assert "is no index of weights" in refusal(lambda: load(checkpoint))


def test_a_configuration_that_names_a_pickle(checkpoint: Path) -> None:
    torch.save(tiny_llama().state_dict(), checkpoint / "adapter_model.bin")
    path = checkpoint / "config.json"
    named = json.loads(path.read_text()) | {"transformers_weights": "adapter_model.bin"}
    path.write_text(json.dumps(named))
    assert "adapter_model.bin" in refusal(lambda: load(checkpoint))


@pytest.mark.parametrize("declared", [-1, [-1, -5], 99_999, [10**12, -7]])
def test_an_end_of_text_that_never_comes_forbids_nothing(checkpoint: Path, declared: Any) -> None:
    # given: "no end" as some configurations write it, and ids that the model does not have
    for name in ("config.json", "generation_config.json"):
        path = checkpoint / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": declared}))
    engine = load(checkpoint)
    last = engine.vocab_size - 1
    # when
    params = SamplingParams(max_new_tokens=3, min_new_tokens=3, logit_bias=((last, 100.0),))
    said = tokens(run_alone(engine, [5], params))
    # then
    assert engine.eos_token_ids == {257}  # the tokenizer's
    assert said == [last] * 3


@pytest.mark.parametrize("wrong", ["<eos>", {"id": 2}, [2, None]])
def test_an_end_of_text_that_is_no_token_id(checkpoint: Path, wrong: Any) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
    assert "is no token id" in refusal(lambda: load(checkpoint))


def test_a_tokenizer_that_reads_no_text(checkpoint: Path) -> None:
    path = checkpoint / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": {}}))
    assert "reads no text" in refusal(lambda: load(checkpoint))


def test_a_tokenizer_at_which_its_library_panics(checkpoint: Path) -> None:
    path = checkpoint / "tokenizer.json"
    damaged = json.loads(path.read_text())
    damaged["model"]["continuing_subword_prefix"] = "longer than a piece"
    path.write_text(json.dumps(damaged))
    assert "no tokenizer" in refusal(lambda: load(checkpoint))


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no folder"):
        load(tmp_path / "nothing")


def test_incomplete_weights(checkpoint: Path) -> None:
    tiny_llama(num_hidden_layers=1).save_pretrained(checkpoint)
    config = (checkpoint / "config.json").read_text()
    (checkpoint / "config.json").write_text(
        config.replace('"num_hidden_layers": 1', '"num_hidden_layers": 2')
    )
    with pytest.raises(UnsupportedModel, match="missing"):
        load(checkpoint)


def configure(checkpoint: Path, **changes: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_many_more_layers_than_weights_are_refused_before_they_are_built(checkpoint: Path) -> None:
    configure(checkpoint, num_hidden_layers=4096)
    with pytest.raises(UnsupportedModel, match="says 4096 layers, and its weights have 2"):
        load(checkpoint)


def test_weights_of_another_shape(checkpoint: Path) -> None:
    configure(checkpoint, intermediate_size=96)
    with pytest.raises(UnsupportedModel, match=r"\[128, 64\], and not \[96, 64\]|\[64, 128\], and"):
        load(checkpoint)


def test_weights_that_nothing_reads(checkpoint: Path) -> None:
    configure(checkpoint, num_hidden_layers=1)
    with pytest.raises(UnsupportedModel, match=r"nothing reads 9 tensors .* model\.layers\.1\."):
        load(checkpoint)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:100],
        lambda _: b"",
        lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123\n",
    ],
    ids=["cut off", "cut off early", "empty", "a pointer of Git LFS"],
)
def test_damaged_weights(checkpoint: Path, damage: Callable[[bytes], bytes]) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnsupportedModel, match="cut off or damaged, or pointers of Git LFS"):
        load(checkpoint)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "wow"}, "looked for 'wow' and found nothing"),
        ({"eos_token_id": "</s>"}, "'eos_token_id': .+"),
    ],
)
def test_what_transformers_says_in_several_lines_or_in_a_word(
    checkpoint: Path, changes: dict[str, Any], reason: str
) -> None:
    configure(checkpoint, **changes)
    with pytest.raises(UnsupportedModel, match=reason):
        load(checkpoint)


def test_a_folder_of_a_model_whose_attention_cannot_be_replaced(checkpoint: Path) -> None:
    construct("FalconConfig", "FalconForCausalLM").save_pretrained(checkpoint)
    with pytest.raises(UnsupportedModel, match="bypass transformers' attention interface"):
        load(checkpoint)


def test_no_chat_template(engine: InferenceEngine) -> None:
    with pytest.raises(RoseError, match="no chat template"):
        engine.encode_chat([{"role": "user", "content": "hello"}])
