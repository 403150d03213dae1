"""vLLM's engine in this process."""

import logging
import os
import random
import sys
from typing import Any

from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

log = logging.getLogger("rose.engine")

#: How long another thread may hold the interpreter lock. A step of vLLM is hundreds of calls of
#: torch, and after each the engine's thread needs the lock: with Python's 5 ms it would wait for
#: the event loop and the tokenizer.
_SWITCH_S = 0.0005


def start_llm(config: Any, stats: Any = None) -> LLMEngine:
    """Load the model of a `VllmConfig`. `stats`: a logger that is told of each step."""
    sys.setswitchinterval(_SWITCH_S)
    llm = LLMEngine(
        vllm_config=config,
        executor_class=Executor.get_class(config),
        log_stats=stats is not None,
        stat_loggers=[] if stats is None else [lambda _config, _index: stats],
        multiprocess_mode=False,
    )
    llm.model_executor.register_failure_callback(_end_process)
    # vLLM has seeded the random numbers of this process: its pauses must differ from other
    # workers'.
    random.seed()
    return llm


def stop_llm(llm: LLMEngine) -> None:
    """End the processes of its executor, which is no failure any more. Otherwise they end with this
    process."""
    llm.model_executor.register_failure_callback(lambda: None)
    llm.engine_core.shutdown()


def _end_process() -> None:
    """A process of the executor has died, and vLLM has ended the others. While no job runs nothing
    else would notice."""
    log.critical("a process of vLLM has died: this worker ends, and its leases lapse")
    os._exit(1)
