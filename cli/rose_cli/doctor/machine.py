"""`rose doctor`, the part about this machine: can it serve the model?"""

import time
from collections.abc import Iterator
from pathlib import Path

import torch

import roseinfer._openmp  # noqa: F401 - before torch
from rose.errors import ConfigurationError, ModelError
from rose_cli.doctor.findings import Finding, fail, ok, warn
from rose_worker.rose_engine import RoseEngine
from rose_worker.settings import WorkerSettings
from roseinfer import native
from roseinfer.checkpoints.target import parse_device


def examine(settings: WorkerSettings, *, load: bool) -> Iterator[Finding]:
    """`load`: the model too, with the check that the engine computes what it would."""
    try:
        device = parse_device(settings.device)
    except ConfigurationError as error:
        yield fail("device", str(error), "set ROSE_DEVICE, or leave it out for the best there is")
        return
    yield _device(device, chosen=settings.device is not None)
    if device.type == "cpu" and not native.available():
        yield warn(
            "decoder",
            "the compiled decoder was not built: common models run at half the speed or less",
            "install a C++ compiler, then roseinfer again",
        )
    if load:
        yield from _model(settings)


def _device(device: torch.device, *, chosen: bool) -> Finding:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return ok("device", f"{device}: {name}, {free >> 30} of {total >> 30} GiB free")
    if not chosen and device.type == "cpu" and any(Path("/dev").glob("nvidia[0-9]*")):
        return warn(
            "device",
            "cpu, though there is an NVIDIA device",
            "install a build of torch for CUDA, or set ROSE_DEVICE=cpu",
        )
    return ok("device", f"{device}, {torch.get_num_threads()} threads")


def _model(settings: WorkerSettings) -> Iterator[Finding]:
    began = time.monotonic()
    try:
        engine = RoseEngine(settings)
    except ConfigurationError as error:
        yield fail("model", str(error), "change what it names: docs/settings.md")
    except ModelError as error:
        yield fail("model", str(error), "set ROSE_MODEL to one that the engine supports")
    except torch.OutOfMemoryError as error:
        yield fail(
            "model",
            f"it does not fit: {str(error).splitlines()[0]}",
            "free the device, or set ROSE_KV_CACHE_TOKENS, ROSE_DTYPE or a smaller ROSE_MODEL",
        )
    else:
        model, took = engine.model, time.monotonic() - began
        yield ok(
            "model",
            f"{model.name}: {model.dtype} on {model.device}, {model.context_tokens} tokens of "
            f"context, decoder {model.decoder}, loaded and checked in {took:.1f} s; it writes "
            f"calls as {model.tool_format or 'nothing known'}, thoughts as "
            f"{model.reasoning_format or 'none'}",
        )
        if engine.second_tier:
            yield _second_tier(engine.second_tier)


def _second_tier(description: str) -> Finding:
    if description.startswith("on"):
        return ok("second tier", description)
    return warn("second tier", description, "mend that, or leave out ROSE_SECOND_TIER_BYTES")
