"""Weights are quantized while they are read: the plain ones are never in memory together."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from roseinfer.demo_model import MODEL_PATH
from tests.roseinfer.models import build, byte_tokenizer, needs_decoder
from tests.support import prequantized_checkpoints as writing

# Prints how many bytes of its own the process has at most, beside what it began with, wherever a
# module of the model gets a parameter or computes.
_LOAD = """
import sys
import torch
from torch.nn.modules import module
from roseinfer import InferenceEngine

def own_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

torch.set_num_threads(1)
InferenceEngine(weights="int8", kv_cache_tokens=64)
before, found = own_bytes(), []
watch = lambda *_: found.append(own_bytes() - before) if len(found) < 10**6 else None
module.register_module_parameter_registration_hook(lambda *_: watch() and None)
module.register_module_forward_hook(lambda *_: watch() and None)
engine = InferenceEngine(sys.argv[1], weights=sys.argv[2], kv_cache_tokens=64)
watch()
print(max(found))
"""


def plain(folder: Path, model: Any) -> Path:
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def gguf(folder: Path, model: Any) -> Path:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    from gguf import GGMLQuantizationType

    from tests.support.gguf_files import write_gguf

    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    return write_gguf(folder / "model.gguf", model, tokenizer, GGMLQuantizationType.Q8_0)


def gptq(folder: Path, model: Any) -> Path:
    tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            numbers = writing.draw(*module.weight.shape, 4, 128, symmetric=True, seed=len(tensors))
            tensors[name] = writing.gptq(numbers, 4)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    writing.write(folder, model, config, tensors)
    byte_tokenizer().save_pretrained(folder)
    return folder


@needs_decoder
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("architecture", "write", "weights", "most"),
    [
        ("llama", plain, "int8", 1.3),
        ("qwen3_moe", plain, "int8", 1.3),
        ("qwen3_moe", gguf, "int8", 1.3),
        ("llama", gptq, "file", 1.0),
    ],
)
def test_the_plain_weights_are_never_in_memory_together(
    architecture: str,
    write: Callable[[Path, Any], Path],
    weights: str,
    most: float,
    tmp_path: Path,
) -> None:
    # given: together they would be there beside those of 8 bits, which are half as large; a few
    # tens of MB of what was freed may stay, whatever the size
    sizes = {
        "vocab_size": 2048,
        "hidden_size": 512,
        "num_hidden_layers": 16,
        "initializer_range": 0.05,
    }
    experts = {"num_experts": 16, "num_local_experts": 16, "moe_intermediate_size": 256}
    model = build(architecture, **sizes, intermediate_size=4096, **experts).bfloat16()
    size = sum(parameter.nbytes for parameter in model.parameters())
    source = write(tmp_path, model)
    # when
    command = [sys.executable, "-c", _LOAD, str(source), weights]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # then
    assert int(printed) < most * size
