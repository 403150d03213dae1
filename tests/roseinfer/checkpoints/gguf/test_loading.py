"""A GGUF file gives the tokens that transformers gives for it, or is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gguf", reason="needs the extra gguf")

from gguf import GGMLQuantizationType as Type
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from rose.errors import UnsupportedModel
from roseinfer import InferenceEngine
from roseinfer.demo_model import MODEL_PATH
from tests.roseinfer.models import answers, build, prompts, reference, tiny_llama
from tests.support.gguf_files import write_gguf

COUNT = 16
PROMPTS = prompts(5, 20, 33)

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_PATH)


@pytest.fixture
def write(tmp_path: Path, tokenizer: Any) -> Write:
    def of(model: Any, kind: Type = Type.F32, **options: Any) -> Path:
        return write_gguf(tmp_path / "some model.gguf", model, tokenizer, kind, **options)

    return of


def load(path: Path, **options: Any) -> InferenceEngine:
    return InferenceEngine(path, device="cpu", kv_cache_tokens=2048, **options)


def of_transformers(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()


def check_tokens(path: Path) -> InferenceEngine:
    # given
    model = of_transformers(path)
    expected = [reference(model, prompt, COUNT) for prompt in PROMPTS]
    assert len({token for ids in expected for token in ids}) >= 4, "it repeats itself"
    # when
    engine = load(path)
    # then
    assert answers(engine, PROMPTS, COUNT) == expected
    return engine


@pytest.mark.parametrize(
    "kind", [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_1, Type.Q8_0]
)
def test_weights_of_each_type_give_the_tokens_of_transformers(write: Write, kind: Type) -> None:
    model = tiny_llama(vocab_size=2048, num_key_value_heads=1)
    engine = check_tokens(write(model, kind))
    assert engine.model_name == "some model"
    assert engine.model.dtype == torch.float32


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q5_K, Type.Q6_K])
def test_blocks_of_256_weights_give_the_tokens_of_transformers(write: Write, kind: Type) -> None:
    check_tokens(write(tiny_llama(vocab_size=2048, hidden_size=256, intermediate_size=256), kind))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma2"])
def test_other_architectures_give_the_tokens_of_transformers(
    write: Write, architecture: str
) -> None:
    changes: dict[str, Any] = {"vocab_size": 2048, "rms_norm_eps": 1e-6}
    if architecture == "qwen3":
        changes["head_dim"] = 128  # what transformers takes for granted
    if architecture == "gemma2":
        changes["query_pre_attn_scalar"] = 256
    model = build(architecture, **changes)
    with torch.no_grad():  # where it is the head as well, it would repeat the last token
        model.get_input_embeddings().weight.mul_(0.03)
    check_tokens(write(model, Type.Q8_0))


def test_the_built_in_model_says_the_same(write: Write, tokenizer: Any) -> None:
    # given: what its folder of safetensors says
    own = load(MODEL_PATH)
    chat = [{"role": "user", "content": "Tell me a story about a café, please."}]
    # when: the tokenizer comes from the file too
    engine = load(write(AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32)))
    # then
    assert engine.encode_chat(chat) == own.encode_chat(chat)
    assert engine.generate("Once upon a time") == own.generate("Once upon a time")
    assert engine.eos_token_ids == own.eos_token_ids == {tokenizer.eos_token_id}
    assert engine.max_bytes_per_token == own.max_bytes_per_token


def test_what_lies_beside_the_file_is_left_alone(write: Write) -> None:
    # given
    path = write(tiny_llama(vocab_size=2048))
    expected = load(path).encode("Once upon a time")
    # when: another model is there too
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        text = (MODEL_PATH / name).read_text().replace("Ġtime", "Ġtjme")
        (path.parent / name).write_text(text.replace('"llama"', '"mamba"'))
    # then
    assert load(path).encode("Once upon a time") == expected


def test_a_fingerprint_is_of_the_content_and_not_of_the_path(write: Write, tmp_path: Path) -> None:
    # given
    first = load(path := write(tiny_llama(vocab_size=2048))).fingerprint
    # when
    copied = load(Path(shutil.copy(path, tmp_path / "elsewhere.gguf"))).fingerprint
    other_weights = load(write(tiny_llama(vocab_size=2048, initializer_range=0.2))).fingerprint
    other_end = load(write(tiny_llama(vocab_size=2048), more={"general.version": "5"})).fingerprint
    # then
    assert copied == first
    assert len({first, other_weights, other_end}) == 3


@pytest.mark.parametrize(
    ("model", "file", "says"),
    [
        # What transformers would pass over.
        ({}, {"more": {"rope.scaling.type": "yarn"}}, "rope.scaling.type is 'yarn'"),
        ({}, {"more": {"attention.sliding_window": 8}}, "sliding window of 8"),
        ({"attention_bias": True}, {}, "numbers, and a llama of this size has"),
        ({}, {"leave_out": "ffn_down"}, "missing"),
    ],
)
def test_a_file_that_would_give_other_tokens_is_refused(
    write: Write, model: dict[str, Any], file: dict[str, Any], says: str
) -> None:
    path = write(tiny_llama(vocab_size=2048, **model), **file)
    with pytest.raises(UnsupportedModel, match=says):
        load(path)


def test_a_base_frequency_that_would_not_be_read_is_refused(write: Write) -> None:
    """transformers reads none for this architecture."""
    rope = {"rope_type": "default", "rope_theta": 1e6}
    model = build("starcoder2", vocab_size=2048, sliding_window=None, rope_parameters=rope)
    model.config.rms_norm_eps = model.config.norm_epsilon
    with pytest.raises(UnsupportedModel, match=r"rope\.freq_base of 1e\+06"):
        load(write(model))


def test_a_file_can_be_loaded_in_half_precision(write: Write) -> None:
    assert load(write(tiny_llama(vocab_size=2048)), dtype="bfloat16").model.dtype == torch.bfloat16


def test_nothing_is_said_while_it_loads(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    load(write(tiny_llama(vocab_size=2048)))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.factor", 4.0),
        ("rope.scale_linear", 4.0),
        ("rope.scaling.attn_factor", 0.5),
        ("rope.dimension_sections", [1, 2, 3]),
        ("attention.clamp_kqv", 0.1),
        ("attention.scale", 1.0),
        ("attention.causal", False),
        ("attention.max_alibi_bias", 8.0),
        ("attention.temperature_scale", 2.0),
        ("use_parallel_residual", True),
        ("logit_scale", 0.5),
        ("final_logit_softcapping", 5.0),
        ("residual_scale", 0.22),
        ("of_tomorrow", 1),
        ("general.quantization_version", 1),
        ("general.of_tomorrow", 1),
        ("tokenizer.ggml.pre_of_tomorrow", 1),
        ("tokenizer.ggml.add_space_prefix", True),
        ("tokenizer.ggml.add_sep_token", True),
        ("tokenizer.ggml.remove_extra_whitespaces", True),
        ("tokenizer.ggml.suppress_tokens", [1, 2]),
        ("tokenizer.ggml.eot_token_id", 99_999),
    ],
)
def test_a_key_that_nothing_reads_is_refused_by_its_name(
    write: Write, key: str, value: Any
) -> None:
    path = write(tiny_llama(vocab_size=2048), more={key: value})
    with pytest.raises(UnsupportedModel, match=key.replace(".", r"\.")):
        load(path)


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        ("llama", "context_length"),
        ("llama", "embedding_length"),
        ("llama", "block_count"),
        ("llama", "feed_forward_length"),
        ("llama", "attention.head_count"),
        ("llama", "attention.layer_norm_rms_epsilon"),
        ("qwen3_moe", "expert_used_count"),
        ("gemma3", "attention.sliding_window"),
        ("gemma3", "rope.freq_base"),
    ],
)
def test_a_file_without_a_key_of_the_model_is_refused_by_its_name(
    write: Write, architecture: str, key: str
) -> None:
    # given
    model = build(architecture, vocab_size=2048, max_position_embeddings=8192)
    more = {"rope.freq_base": 1e6} if architecture == "gemma3" else {}
    path = write(model, more=more, without=key)
    # when
    with pytest.raises(UnsupportedModel) as caught:
        load(path)
    # then
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_that_change_nothing_are_passed_over(write: Write) -> None:
    # given
    expected = answers(load(write(tiny_llama(vocab_size=2048))), PROMPTS, COUNT)
    neutral = {
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.finetuned": True,
        "attention.clamp_kqv": 0.0,
        "attention.causal": True,
        "use_parallel_residual": False,
        "expert_count": 0,
        "general.size_label": "tiny",
        "general.base_model.0.name": "someone's",
        "general.sampling.temp": 0.7,
        "quantize.imatrix.file": "x.dat",
        "split.count": 1,
        "tokenizer.ggml.mask_token_id": 3,
        "tokenizer.ggml.fim_pre_token_id": 3,
        "tokenizer.ggml.add_sep_token": False,
    }
    # when
    engine = load(write(tiny_llama(vocab_size=2048), more=neutral))
    # then
    assert answers(engine, PROMPTS, COUNT) == expected


def test_an_end_of_a_turn_and_of_a_message_are_ends(write: Write, tokenizer: Any) -> None:
    more = {
        "tokenizer.ggml.eot_token_id": 17,
        "tokenizer.ggml.eom_token_id": 18,
    }
    engine = load(write(tiny_llama(vocab_size=2048), more=more))
    assert engine.eos_token_ids == {17, 18, tokenizer.eos_token_id}
    # -1, which says that there is none
    engine = load(
        write(tiny_llama(vocab_size=2048), more={"tokenizer.ggml.eot_token_id": 2**32 - 1})
    )
    assert engine.eos_token_ids == {tokenizer.eos_token_id}


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5"]),
        ("starcoder", ["It", "'s", "Ġ", "1", "2", "3", "4", "5"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45"]),
        ("deepseek-v3", ["It", "'s", "Ġ", "123", "45"]),
        ("tekken", ["It", "'s", "Ġ", "1", "2", "3", "4", "5"]),
        ("default", ["It", "'", "s", "Ġ", "123", "45"]),
    ],
)
def test_text_is_cut_as_the_file_says(write: Write, pre: str, pieces: list[str]) -> None:
    path = write(tiny_llama(vocab_size=2048), pre=pre)
    backend = load(path).tokenizer.backend_tokenizer
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("It's 12345")] == pieces


@pytest.mark.parametrize("pre", ["nonsense", "kimi-k2", "deepseek-llm"])
def test_a_way_to_cut_text_that_is_not_known_is_refused(write: Write, pre: str) -> None:
    path = write(tiny_llama(vocab_size=2048), pre=pre)
    with pytest.raises(UnsupportedModel, match=rf"tokenizer\.ggml\.pre is '{pre}'"):
        load(path)
