"""The engine. It makes text of its tokens as well, which its peers here do not."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine.contenders import Course, Run, Streaming, Traffic
from benchmarks.workload import Workload
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from roseinfer.demo_model import MODEL_PATH


class Ours(Streaming):
    name = "roseinfer"

    def __init__(
        self,
        model: Path,
        dtype: str,
        max_batch_size: int,
        max_step_tokens: int,
        weights: str | None = None,
        *,
        name: str = name,
        tokenizer: str | None = str(MODEL_PATH),
        cache_tokens: int | None = None,
    ) -> None:
        """`tokenizer`: None is the model's own. `cache_tokens`: None is the engine's default, which
        several engines on one machine have no memory for."""
        self.name = name
        self.engine = InferenceEngine(
            model,
            tokenizer_name=tokenizer,
            dtype=dtype,
            weights=weights,
            kv_cache_tokens=cache_tokens,
        )
        self._limits = max_batch_size, max_step_tokens

    def scheduler(
        self, itl_target_ms: float | None = None, *, speculation: bool = False
    ) -> OnlineScheduler:
        return OnlineScheduler(
            self.engine,
            *self._limits,
            keep_finished=False,
            itl_target_ms=itl_target_ms,
            speculation=speculation,
        )

    def run(self, work: Workload) -> Run:
        scheduler = self.scheduler()
        outputs: dict[str, list[int]] = defaultdict(list)
        began = time.perf_counter()
        ids = [
            scheduler.add_request(prompt, params=exactly(count))
            for prompt, count in zip(work.prompts, work.new_tokens, strict=True)
        ]
        while scheduler.has_unfinished():
            for output in scheduler.step():
                outputs[output.request_id] += output.token_ids
        seconds = time.perf_counter() - began
        return Run(seconds, [outputs[request_id] for request_id in ids])

    def serve(self, traffic: Traffic, itl_target_ms: float | None = None) -> Course:
        scheduler = self.scheduler(itl_target_ms)
        began, cpu_began = time.perf_counter(), time.process_time()
        decoding = [
            scheduler.add_request(prompt, params=exactly(traffic.new_tokens))
            for prompt in traffic.decoding
        ]
        first_made, arrived, last = 0, dict[str, float](), dict[str, float]()
        intervals, first_tokens = list[float](), list[float]()
        due = [(number * traffic.every, p) for number, p in enumerate(traffic.arriving, start=1)]
        while scheduler.has_unfinished():
            while due and first_made >= due[0][0]:
                name = scheduler.add_request(due.pop(0)[1], params=exactly(1))
                arrived[name] = time.perf_counter()
            outputs, now = scheduler.step(), time.perf_counter()
            for output in outputs:
                name = output.request_id
                if name in arrived:
                    first_tokens.append(now - arrived[name])
                elif name in last:
                    intervals.append(now - last[name])
                last[name] = now
                first_made += len(output.token_ids) * (name == decoding[0])
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        return Course(seconds, cpu_seconds, intervals, first_tokens)

    def token_times(self, prompt: Sequence[int], new_tokens: int) -> list[float]:
        scheduler = self.scheduler()
        times, began = list[float](), time.perf_counter()
        scheduler.add_request(prompt, params=exactly(new_tokens))
        while scheduler.has_unfinished():
            if scheduler.step():
                times.append(time.perf_counter() - began)
        return times


def exactly(new_tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
