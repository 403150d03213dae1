"""Weights are quantized while they are read: the plain ones are never in memory together."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.roseinfer.models import build, byte_tokenizer, needs_decoder

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
engine = InferenceEngine(sys.argv[1], weights="int8", kv_cache_tokens=64)
watch()
print(max(found))
"""


@needs_decoder
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_the_plain_weights_are_never_in_memory_together(architecture: str, tmp_path: Path) -> None:
    # given: together they would be there beside those of 8 bits, which are half as large, and more
    sizes = {
        "vocab_size": 512,
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "initializer_range": 0.05,
    }
    experts = {"num_experts": 16, "num_local_experts": 16, "moe_intermediate_size": 256}
    model = build(architecture, **sizes, intermediate_size=4096, **experts).bfloat16()
    plain = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    # when
    command = [sys.executable, "-c", _LOAD, str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # then
    assert int(printed) < 1.6 * plain
