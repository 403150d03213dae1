"""Steps, samples and products by several threads, for ThreadSanitizer to watch; see sanitize.py."""

import os
from pathlib import Path

import torch

from roseinfer import InferenceEngine, SamplingParams
from roseinfer.model.quantization import FORMATS
from roseinfer.native import library
from roseinfer.native.library import sample_rows
from roseinfer.native.weights import QUANTIZED_TYPES, PackedMatrix, QuantizedMatrix
from roseinfer.sessions.session import SamplingRequest
from tests.roseinfer.models import answers, build, prompts, random_weight

_THREADS = 4


def main() -> None:
    loaded = library.open_library(Path(os.environ["ROSE_TEST_LIBRARY"]))
    assert loaded.library is not None, loaded.reason
    library.load = lambda: loaded  # type: ignore[assignment]
    torch.set_num_threads(_THREADS)
    for name, number in library.builds(loaded.library).items():
        loaded.library.rose_choose(number)
        for dtype in (torch.float32, torch.bfloat16):
            for architecture in (
                "llama",
                "gpt2",
                "gemma2",
                "qwen2_moe",
                "gpt_oss",
                "qwen3_5",
                "lfm2",
                "bamba",
                "falcon_h1",
                "mamba2",
                "glm4_moe_lite",
                "gemma4",
                "gemma4_moe",
            ):
                model = build(architecture).to(dtype)
                engine = InferenceEngine.from_model(model, kv_cache_tokens=1024)
                assert engine.decoder_description == f"compiled ({name})"
                answers(engine, prompts(3, 20, 9, 61), 4, max_batch_size=4)
            if dtype is torch.bfloat16:
                _quantized(name)
            PackedMatrix(torch.randn(129, 608).to(dtype)).multiply(torch.randn(200, 608))
        params = SamplingParams(temperature=1.0, top_p=0.9, top_k=40, seed=1)
        rows = [SamplingRequest(params, position) for position in range(16)]
        sample_rows([(torch.randn(16, 300), range(16))], rows)
        print(f"{name}: done", flush=True)


def _quantized(name: str) -> None:
    for form in QUANTIZED_TYPES:
        matrix = QuantizedMatrix(random_weight(form, (129, 768)))
        for rows in (1, 40):
            matrix.multiply(torch.randn(rows, 768))
    for weights in FORMATS:
        model = build("llama").bfloat16()
        engine = InferenceEngine.from_model(model, kv_cache_tokens=1024, weights=weights)
        assert engine.decoder_description == f"compiled ({name}), {weights} weights"
        answers(engine, prompts(3, 20, 9, 61), 4, max_batch_size=4)
        answers(engine, prompts(5), 4)  # alone: each thread prepares the row for itself


if __name__ == "__main__":
    main()
