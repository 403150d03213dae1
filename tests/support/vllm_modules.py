"""Imports what a worker with vLLM needs, which takes tens of seconds: a process forked afterwards
need not."""

import importlib

from rose_worker.vllm.installation import check_installation

_MODULES = (
    "rose_worker.vllm.arguments",
    "rose_worker.vllm.engine",
    "rose_worker.vllm.sampling",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)

check_installation()
for module in _MODULES:
    importlib.import_module(module)
