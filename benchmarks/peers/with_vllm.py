"""vLLM as a process that takes turns.

    PYTHON_OF_VLLM -m benchmarks.peers.with_vllm --model FOLDER --dtype float32|bfloat16 ...

    {"prompts": [[...]], "new_tokens": [...], "sampling": {...}}
        ->  {"seconds": ..., "outputs": [[...]]}; `sampling` (optional): temperature, top_p
    {"prompt": [...], "new_tokens": n}         ->  {"times": [...]}: seconds to each token
    {"decoding": [[...]], "arriving": [[...]], "new_tokens": n, "every": m}
        ->  {"seconds": ..., "cpu_seconds": ..., "intervals": [...], "first_tokens": [...]}:
        traffic and its course, see `benchmarks.engine.contenders`

It needs nothing but vLLM and this package, and with `--rose-sampling` our worker, whose logits
processor then draws the tokens. The first line that it writes says which versions it runs.
"""

import argparse
import time
from functools import partial
from typing import Any

from benchmarks.peers.turns import Answers, take_turns


def load(args: argparse.Namespace) -> Any:
    """One process, no tokenizer: token ids in, token ids out, as from its peers."""
    ours: dict[str, Any] = {}
    if args.rose_sampling:  # as the worker has it
        from rose_worker.vllm.installation import check_installation

        check_installation()
        from rose_worker.vllm.arguments import LOGITS_PROCESSOR

        ours = {"logits_processors": [LOGITS_PROCESSOR], "async_scheduling": False}
    from vllm import LLM

    return LLM(
        model=args.model,
        dtype=args.dtype,
        skip_tokenizer_init=True,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_batch_size,
        seed=0,
        enforce_eager=args.eager,
        **ours,
    )


def params(new_tokens: int, **sampling: Any) -> Any:
    from vllm import SamplingParams

    how = {"temperature": 0.0, "ignore_eos": True, "detokenize": False} | sampling
    return SamplingParams(max_tokens=new_tokens, **how)


def rose_params(new_tokens: int, prompt_length: int, sampling: dict[str, Any]) -> Any:
    """The same for our logits processor: vLLM itself is greedy."""
    from rose.sampling import SamplingParams
    from rose_worker.vllm.sampling import extra_args

    ours = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, **sampling)
    return params(new_tokens, extra_args=extra_args(ours.seeded(), prompt_length))


def run(
    llm: Any,
    prompts: list[list[int]],
    new_tokens: list[int],
    sampling: dict[str, Any] | None = None,
    *,
    ours: bool = False,
) -> dict[str, Any]:
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    how = sampling or {}
    wanted = [
        rose_params(count, len(prompt), how) if ours else params(count, **how)
        for prompt, count in zip(prompts, new_tokens, strict=True)
    ]
    began = time.perf_counter()
    answers = llm.generate(asked, wanted, use_tqdm=False)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "outputs": [list(a.outputs[0].token_ids) for a in answers]}


def stream(llm: Any, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    """The loop of `LLM.generate` by hand, to see each token come."""
    engine, began = llm.llm_engine, time.perf_counter()
    engine.add_request(str(time.monotonic_ns()), {"prompt_token_ids": prompt}, params(new_tokens))
    times: list[float] = []
    while engine.has_unfinished_requests():
        for answer in engine.step():
            fresh = len(answer.outputs[0].token_ids) - len(times)
            times += [time.perf_counter() - began] * fresh
    return {"times": times}


def serve(
    llm: Any, decoding: list[list[int]], new_tokens: int, arriving: list[list[int]], every: int
) -> dict[str, Any]:
    engine, run = llm.llm_engine, time.monotonic_ns()
    began, cpu_began = time.perf_counter(), time.process_time()
    first, made, last = f"{run}/0", 0, dict[str, float]()
    for number, prompt in enumerate(decoding):
        asked = {"prompt_token_ids": prompt}
        engine.add_request(f"{run}/{number}", asked, params(new_tokens))
    arrived, due = dict[str, float](), list(enumerate(arriving, start=1))
    intervals, first_tokens = list[float](), list[float]()
    while engine.has_unfinished_requests():
        while due and made >= due[0][0] * every:
            number, prompt = due.pop(0)
            name = f"{run}/arriving/{number}"
            engine.add_request(name, {"prompt_token_ids": prompt}, params(1))
            arrived[name] = time.perf_counter()
        answers, now = engine.step(), time.perf_counter()
        for answer in answers:
            name = answer.request_id
            if name in arrived:
                first_tokens.append(now - arrived[name])
            elif name in last:
                intervals.append(now - last[name])
            last[name] = now
            made = len(answer.outputs[0].token_ids) if name == first else made
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_began,
        "intervals": intervals,
        "first_tokens": first_tokens,
    }


def answer_to(llm: Any, asked: dict[str, Any], *, ours: bool) -> dict[str, Any]:
    if "decoding" in asked:
        return serve(llm, **asked)
    return run(llm, **asked, ours=ours) if "prompts" in asked else stream(llm, **asked)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-batch-size", type=int, required=True)
    parser.add_argument("--rose-sampling", action="store_true")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    take_turns(partial(_start, args))


def _start(args: argparse.Namespace) -> tuple[dict[str, Any], Answers]:
    llm = load(args)
    import torch
    import vllm

    versions = {"vllm": vllm.__version__, "torch": torch.__version__}
    return versions, partial(answer_to, llm, ours=args.rose_sampling)


if __name__ == "__main__":
    main()
