"""SmolLM2-135M-Instruct: eight chats, in one batch, token for token as transformers has them; and
nearly the same with its blocks kept.

transformers takes minutes for all of it, so without `-m sweep` it is asked for a few words.
"""

from pathlib import Path

import pytest
import torch

pytest.importorskip("gguf", reason="needs the extra gguf")

from gguf import GGMLQuantizationType as Type
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from benchmarks.quality import Score, logits_of, windows_of
from roseinfer import InferenceEngine
from roseinfer.checkpoints.gguf.checkpoint import load_once
from tests.roseinfer.models import answers, needs_decoder, reference
from tests.support.gguf_files import write_gguf
from tests.support.real_model import real_model

pytestmark = pytest.mark.timeout(3600)  # a busy machine takes minutes to load it

TEXT = Path(__file__).parents[4] / "docs/design.md"
QUESTIONS = (
    "Why is the sky blue?",
    "Write a short poem about the sea in autumn.",
    "What is 12 plus 30? Explain each step.",
    "Name three animals that live in the Arctic, and what they eat.",
    "Explain to a child how a bicycle stays upright.",
    "List the planets of the solar system.",
    "Tell me a story about a fisherman and a café.",
    "What should I cook with rice, tomatoes and eggs?",
)


def check(path: Path, questions: tuple[str, ...], count: int) -> None:
    # given: what transformers says, one chat at a time, with its own tokenizer
    arguments = {"gguf_file": path.name}
    with load_once():
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **arguments)
        # What the file calls smollm, which transformers passes over.
        digits, words = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
        model = AutoModelForCausalLM.from_pretrained(
            path.parent,
            **arguments,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        ).eval()
    chats = [[{"role": "user", "content": question}] for question in questions]
    prompts = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        for chat in chats
    ]
    expected = [reference(model, prompt, count) for prompt in prompts]
    # when
    engine = InferenceEngine(path, device="cpu", dtype="float32", kv_cache_tokens=4096)
    # then
    assert [engine.encode_chat(chat) for chat in chats] == prompts
    assert answers(engine, prompts, count, max_batch_size=8, max_step_tokens=64) == expected


def test_a_real_model_says_a_few_words() -> None:
    check(real_model(), QUESTIONS[:2], 12)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [Type.Q4_1, Type.Q8_0])
def test_eight_chats_of_200_tokens_are_those_of_transformers(kind: Type, tmp_path: Path) -> None:
    check(of_type(kind, tmp_path), QUESTIONS, 200)


@needs_decoder
@pytest.mark.parametrize("kind", [Type.Q4_1, pytest.param(Type.Q8_0, marks=pytest.mark.sweep)])
def test_kept_blocks_read_a_text_as_the_dequantized_model_does(kind: Type, tmp_path: Path) -> None:
    # given
    path = of_type(kind, tmp_path)
    exact = InferenceEngine(path, device="cpu", dtype="float32", kv_cache_tokens=4096)
    kept = InferenceEngine(path, device="cpu", weights="file", kv_cache_tokens=4096)
    # when
    scores = {engine: Score() for engine in (exact, kept)}
    for ids in windows_of(exact.encode(TEXT.read_text(encoding="utf-8")), 512):
        expected = logits_of(exact, ids)
        for engine, score in scores.items():
            score.add(logits_of(engine, ids), expected, torch.tensor(ids[1:]))
    # then: activations in 8 bits are all that differs
    of_exact, of_kept = scores[exact], scores[kept]
    assert of_kept.loss / of_kept.tokens == pytest.approx(of_exact.loss / of_exact.tokens, abs=0.01)
    assert of_kept.same / of_kept.tokens > 0.93
    assert of_kept.divergence / of_kept.tokens < 0.01
    # and a chat's tokens are its own, whoever is beside it
    chats = [kept.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]
    together = answers(kept, chats, 24, max_batch_size=8)
    assert together == [answers(kept, [chat], 24)[0] for chat in chats]


def of_type(kind: Type, folder: Path) -> Path:
    """The model with its matrices of this type; its own are Q4_1."""
    path = real_model()
    if kind is Type.Q4_1:
        return path
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return write_gguf(folder / "other.gguf", model, tokenizer, kind)
