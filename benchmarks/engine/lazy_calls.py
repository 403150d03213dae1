"""What calls under `auto` cost while nothing is called: `python -m benchmarks.engine.lazy_calls`.

The built-in model writes the same texts with the grammar and the parser of calls, and without, in
turns. Processor time is compared, on one thread, so that others on the machine count less.
"""

import statistics
import time
from typing import Any

import torch

from rose.formats.registry import TOOL_FORMATS
from rose_gateway.tools.tools import Choice, Function, plan_tools
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams

_PROMPT = "Once upon a time there was a"
_ROWS, _TOKENS, _ROUNDS, _FIRSTS = 16, 128, 5, 31
_SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["place"],
}
_FUNCTIONS = [Function(f"f{number}", None, _SCHEMA, f"tools[{number}]") for number in range(8)]


def _run(engine: InferenceEngine, rows: int, tokens: int, tool_format: str) -> tuple[float, int]:
    """Processor seconds, and tokens. `tool_format`: "" without calls."""
    fields: dict[str, Any] = {}
    parsers: dict[str, Any] = {}
    plan = None
    if tool_format:
        plan = plan_tools(_FUNCTIONS, Choice("auto"), tool_format=tool_format)
        fields = {**plan.lazy, **plan.form.sampling}
    began = time.process_time()
    scheduler = OnlineScheduler(engine, rows)
    for seed in range(rows):
        params = SamplingParams(max_new_tokens=tokens, temperature=0.8, seed=seed, **fields)
        name = scheduler.add_request(_PROMPT, params=params)
        if plan is not None:
            parsers[name] = plan.form.parser()
    count = 0
    while scheduler.has_unfinished():
        for output in scheduler.step():
            count += len(output.token_ids)
            if parsers:
                parsers[output.request_id].feed(output.text)
    return time.process_time() - began, count


def main() -> None:
    torch.set_num_threads(1)
    engine = InferenceEngine(device="cpu")
    for tool_format in TOOL_FORMATS:
        if tool_format == "harmony":  # whose model begins with a head, which this one does not know
            continue
        for name in ("", tool_format):  # compiles, and warms up
            _run(engine, 2, 2, name)
        ratios, firsts = [], []
        for _ in range(_ROUNDS):
            plain_s, plain = _run(engine, _ROWS, _TOKENS, "")
            lazy_s, lazy = _run(engine, _ROWS, _TOKENS, tool_format)
            ratios.append((lazy / lazy_s) / (plain / plain_s))
        for _ in range(_FIRSTS):
            plain_s, _ = _run(engine, 1, 1, "")
            lazy_s, _ = _run(engine, 1, 1, tool_format)
            firsts.append(1000 * (lazy_s - plain_s))
        print(
            f"{tool_format}: {statistics.median(ratios):.3f} of the tokens/s, first token "
            f"{statistics.median(firsts):+.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
