"""The engines that have a model, side by side: what a test must set to start one, and how to drive
one without a worker.

vLLM is only there in the environment of `make test-vllm`, so nothing here imports it.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from rose.engine_records import PromptLogprobs, TokenLogprob
from rose.protocol import JobSpec
from rose.sampling import SamplingParams
from rose_producer import Result
from rose_worker.engine import Engine
from roseinfer.demo_model import MODEL_PATH

#: Small, on whatever cores there are, and never online.
_VARIABLES = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}

#: Settings of a worker, for the built-in model.
SETTINGS: dict[str, dict[str, Any]] = {
    "rose": {"engine": "rose", "device": "cpu", "torch_threads": 1},
    "vllm": {"engine": "vllm", "max_context": 1024},
}

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)

#: A request for each sampling parameter that changes what comes, and some together.
FEATURES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "temperature": 0.7},
    {"presence_penalty": 1.5, "no_repeat_ngram_size": 3},
    {"stop": ["and", "the"], "min_new_tokens": 25, "temperature": 1.0},
    {"logit_bias": ((5, 3.0), (300, -50.0)), "logprobs": True, "top_logprobs": 4},
    {"logprobs": True, "temperature": 0.8},
    {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": True},
    {"json_schema": SCHEMA, "temperature": 1.0},
    {"regex": "[A-Z][a-z]{5,30}( [0-9]{3}){8}", "temperature": 0.9},
    {"grammar": 'start: ("ha" | "ho"){30}', "temperature": 2.0, "min_new_tokens": 20},
    {"stop_token_ids": list(range(100, 160)), "ignore_eos": True, "temperature": 1.0},
    {"thought_format": "think", "thought_budget": 12, "temperature": 0.9},
]


#: To start a vLLM, on a machine that does other things too.
START_S = 280


def set_variables() -> None:
    """For vLLM in this process and those that it starts. A test that starts workers also sets
    `ROSE_CUDA_GRAPHS=false`: compiling takes longer than all that the test does."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)


@dataclass(slots=True)
class Answer:
    """What an engine reported of one job, joined."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: str | None = None
    error: str | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None


def jobs(features: Iterable[Mapping[str, Any]], count: int = 40) -> list[JobSpec]:
    return [
        JobSpec(
            id=f"job-{number}",
            prompt=f"Once upon a time there was a little {animal}"
            + ("<think>" if "thought_budget" in feature else ""),
            sampling=SamplingParams(max_new_tokens=count, **feature),
        )
        for number, (feature, animal) in enumerate(
            zip(features, ["fox", "bear", "mouse", "train"] * 10, strict=False)
        )
    ]


def answers(
    engine: Engine,
    specs: Sequence[JobSpec],
    begun: Mapping[str, Answer] | None = None,
    *,
    steps: int | None = None,
) -> dict[str, Answer]:
    """Run jobs to their ends, or for so many steps. Those that are `begun` go on."""
    done = {spec.id: Answer() for spec in specs}
    for spec in specs:
        before = (begun or {}).get(spec.id, Answer())
        done[spec.id].token_ids += before.token_ids
        done[spec.id].text = before.text
        done[spec.id].logprobs += before.logprobs
        done[spec.id].prompt_logprobs = before.prompt_logprobs
        engine.add(engine.prepare(spec, before.token_ids))
    while engine.has_work and steps != 0:
        collect(engine, done)
        steps = None if steps is None else steps - 1
    for spec in specs:
        engine.abort(spec.id)
    return done


def collect(engine: Engine, done: Mapping[str, Answer], only: str | None = None) -> None:
    """One step, whose outputs are added."""
    for output in engine.step(only):
        answer = done[output.request_id]
        assert output.index == len(answer.token_ids)
        answer.token_ids += output.token_ids
        answer.text += output.text
        answer.reason = output.finish_reason
        answer.error = str(output.error) if output.error is not None else None
        answer.logprobs += output.logprobs or ()
        if output.prompt_logprobs is not None:
            assert answer.prompt_logprobs is None, "they came twice"
            answer.prompt_logprobs = output.prompt_logprobs


def all_logprobs(answer: Answer | Result) -> list[TokenLogprob]:
    """Of the prompt's tokens, where they were asked for, and of the generated ones."""
    prompt = answer.prompt_logprobs
    return [*(prompt.logprobs if prompt is not None else ()), *(answer.logprobs or ())]


def differences(result: Result, answer: Answer) -> list[str]:
    """Between what a queue said and what an engine said without one; log-probabilities may differ
    by rounding."""
    pairs = {
        "token ids": (list(result.token_ids), answer.token_ids),
        "text": (result.text, answer.text),
        "finish reason": (result.finish_reason, answer.reason),
    }
    found = [
        f"{result.job_id}: {what}: {said!r} instead of {wanted!r}"
        for what, (said, wanted) in pairs.items()
        if said != wanted
    ]
    if not _same_logprobs(all_logprobs(result), all_logprobs(answer)):
        found.append(f"{result.job_id}: log-probabilities: {result.logprobs!r}")
    return found


def _same_logprobs(said: Sequence[TokenLogprob], wanted: Sequence[TokenLogprob]) -> bool:
    def flat(logprobs: Sequence[TokenLogprob]) -> tuple[list[int], list[float]]:
        tops = [pair for one in logprobs for pair in one.top]
        values = [one.logprob for one in logprobs] + [value for _, value in tops]
        return [token for token, _ in tops], values

    (tokens, values), (wanted_tokens, wanted_values) = flat(said), flat(wanted)
    return tokens == wanted_tokens and values == pytest.approx(wanted_values, abs=1e-3)


def write_adapter(folder: Path, seed: int, rank: int = 4) -> Path:
    """A random LoRA adapter of the built-in model, for its queries and values."""
    generator = torch.Generator().manual_seed(seed)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "built-in",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    tensors = {}
    for name, weight in _weights().items():
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            rows, columns = weight.shape
            module = f"base_model.model.{name.removesuffix('.weight')}"
            a = torch.randn(rank, columns, generator=generator) / columns**0.5
            b = torch.randn(rows, rank, generator=generator) / 4
            tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = a, b
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged_with(adapter: Path, folder: Path) -> Path:
    """The built-in model with an adapter added to its weights."""
    folder.mkdir(parents=True)
    for path in MODEL_PATH.glob("*.j*"):
        (folder / path.name).write_bytes(path.read_bytes())
    weights = {name: weight.float() for name, weight in _weights().items()}
    parts = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    for name, a in parts.items():
        if name.endswith("lora_A.weight"):
            b = parts[name.replace("lora_A", "lora_B")]
            target = name.removeprefix("base_model.model.").replace(".lora_A", "")
            weights[target] = weights[target] + 2.0 * (b @ a)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _weights() -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = safetensors.torch.load_file(MODEL_PATH / "model.safetensors")
    return loaded
