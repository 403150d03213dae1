"""SmolLM2-135M-Instruct: eight chats, in one batch, token for token as transformers has them.

transformers takes minutes for all of it, so without `-m sweep` it is asked for a few words.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("gguf", reason="needs the extra gguf")

from gguf import GGMLQuantizationType as Type
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from roseinfer import InferenceEngine
from roseinfer.gguf.checkpoint import load_once
from tests.roseinfer.models import answers, reference
from tests.support.gguf_files import write_gguf
from tests.support.real_model import real_model

pytestmark = pytest.mark.timeout(3600)  # a busy machine takes minutes to load it

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


def test_a_few_words() -> None:
    check(real_model(), QUESTIONS[:2], 12)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [Type.Q4_1, Type.Q8_0])
def test_eight_chats_of_200_tokens(kind: Type, tmp_path: Path) -> None:
    path = real_model()
    if kind is not Type.Q4_1:  # the file's own
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        path = write_gguf(tmp_path / "as-q8.gguf", model, tokenizer, kind)
    check(path, QUESTIONS, 200)
