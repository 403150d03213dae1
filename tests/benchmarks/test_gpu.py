"""The GPU's benchmark runs without one, small; how fast decides nothing here."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.cases import FULL, nano_vllm
from benchmarks.limits import measure_limits
from benchmarks.models import ON_GPU


@pytest.mark.timeout(3600)  # a worker through the interpreter, where cores are fought for
def test_the_benchmark_runs_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # when
    data = tmp_path / "data.json"
    _run(monkeypatch, "--cpu-smoke", "--model", "qwen3-0.6b", "--json", str(data))
    # then
    result = json.loads(data.read_text())
    assert result["environment"]["GPU"] == "none"
    cases = result["cases"]
    assert [*cases] == ["decode/qwen3-0.6b", "busy/qwen3-0.6b", "nano/qwen3-0.6b", "service"]
    nano = [row["contender"] for row in cases["nano/qwen3-0.6b"]["rows"]]
    assert nano[:3] == [
        "roseinfer",
        "transformers generate, static batch",
        "transformers continuous batching",
    ]
    assert not any("the same tokens" in note for note in cases["nano/qwen3-0.6b"]["notes"])
    served = {row["contender"] for row in cases["service"]["rows"]}
    assert served == {"in process", "through Redis"}
    assert all(not case["checks"] for case in cases.values()), "a smoke run judges nothing"


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments])
    main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no GPU here; --cpu-smoke"):
        _run(monkeypatch)


def test_the_workload_is_that_of_nano_vllm() -> None:
    work, again = (nano_vllm(FULL, 1000, turn) for turn in (0, 1))
    lengths = [len(prompt) for prompt in work.prompts]
    assert len(lengths) == 256
    assert min(*lengths, *work.new_tokens) >= 100
    assert max(*lengths, *work.new_tokens) <= 1024
    assert [len(prompt) for prompt in again.prompts] == lengths
    assert again.prompts != work.prompts


def test_the_shapes_have_the_sizes_of_their_names() -> None:
    sizes = {}
    for name, config in ON_GPU.items():
        c = config()
        heads = c.head_dim or c.hidden_size // c.num_attention_heads
        attention = 2 * c.hidden_size * heads * (c.num_attention_heads + c.num_key_value_heads)
        layer = attention + 3 * c.hidden_size * c.intermediate_size
        embeddings = c.vocab_size * c.hidden_size * (1 if c.tie_word_embeddings else 2)
        sizes[name] = round((layer * c.num_hidden_layers + embeddings) / 1e9, 1)
    assert sizes == {"qwen3-0.6b": 0.6, "llama-8b": 8.0}


def test_limits_are_rates() -> None:
    limits = measure_limits(torch.device("cpu"), torch.float32, 2**16, 64)
    assert limits.memory > 1e6
    assert limits.compute > 1e6
