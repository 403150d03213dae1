"""The engine's benchmark runs and says what it measured; how fast decides nothing here."""

import json
import math
import os
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from benchmarks.board import Board, percentile
from benchmarks.engine.__main__ import main
from benchmarks.engine.cases.interference import ALONE, P99
from benchmarks.engine.cases.speculation import PLAIN, SPECULATING, TASKS, TRAINED, metric
from benchmarks.engine.contenders import Run, Traffic
from benchmarks.engine.contenders.llama_cpp import LlamaCpp
from benchmarks.engine.contenders.openvino import OpenVino
from benchmarks.engine.contenders.transformers import Continuous
from benchmarks.engine.contenders.vllm import Vllm
from benchmarks.workload import Workload
from roseinfer import native
from roseinfer.demo_model import MODEL_PATH
from tests.support.bench import wait_until
from training import train

_STAND_IN = '''
"""As much of vLLM as the runner asks for: it says the prompt's last token again and again."""
from types import SimpleNamespace as Something

__version__ = "0"

class SamplingParams:
    def __init__(self, *, max_tokens, **_):
        self.max_tokens = max_tokens

def _answer(name, prompt, tokens):
    ids = prompt["prompt_token_ids"][-1:] * tokens
    return Something(request_id=name, outputs=[Something(token_ids=ids)])

class LLM:
    def __init__(self, **_):
        print("a greeting on stdout, as vLLM likes to print them", flush=True)
        self.llm_engine, self._requests = self, {}

    def generate(self, prompts, params, use_tqdm):
        return [_answer("", p, s.max_tokens) for p, s in zip(prompts, params)]

    def add_request(self, name, prompt, params):
        self._requests[name] = [prompt, params.max_tokens, 0]

    def has_unfinished_requests(self):
        return bool(self._requests)

    def step(self):
        answers = []
        for name, request in list(self._requests.items()):
            prompt, wanted, made = request
            request[2] = made + 1
            answers.append(_answer(name, prompt, made + 1))
            if made + 1 == wanted:
                del self._requests[name]
        return answers
'''


@pytest.mark.timeout(3600)  # it loads a model in a worker, too: minutes where cores are fought for
def test_the_benchmark_measures_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    data = tmp_path / "data.json"
    # when
    _run(monkeypatch, "--json", str(data))
    # then
    result = json.loads(data.read_text())
    cases = result["cases"]
    batch, kind = cases["batch/built-in/float32"], "tokens/s"
    assert _who(batch, kind) == {
        "roseinfer",
        "transformers generate, static batch",
        "past_key_values, re-padded each step",
        "transformers continuous batching",
    }
    assert batch["notes"] == []  # all made the same tokens
    assert _who(cases["single/built-in/float32"], "decode, tokens/s") == {"roseinfer"}
    if native.available():
        formats = cases["quantized/built-in"]
        assert _who(formats, "decode, tokens/s") == {"bfloat16", "int8", "int4"}
        assert len(formats["checks"]) == 4
        for what in ("first token of 300, s", "after 300, tokens/s"):
            assert _who(cases["long/built-in"], what) == {"bfloat16", "int8"}
        products = cases["prefill/built-in/float32"]
        assert {row["contender"] for row in products["rows"]} == {"roseinfer", "oneDNN"}
        assert len(products["checks"]) == 4
    assert len(cases["start"]["checks"]) == 1
    assert _who(cases["waiting"], "step, µs per token") == {"2 waiting", "20 waiting"}
    assert _who(cases["context"], "decode step, ms") == {"512 tokens", "1,024 tokens"}
    for figure in (ALONE, P99):
        assert _who(cases["interference"], figure) == {"roseinfer", "roseinfer, no target"}
    assert len(cases["interference"]["checks"]) == 3
    for task in TASKS:
        assert _who(cases["speculation"], metric(task, 4)) == {PLAIN, SPECULATING}
    assert _who(cases["service"], "tokens/s") == {"in process", "through Redis"}
    rows = [row for case in cases.values() for row in case["rows"] if "added" not in row["metric"]]
    assert all(len(row["rounds"]) == 1 and row["rounds"][0] > 0 for row in rows)


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """The command, in this process: a fresh one would spend its time on imports."""
    monkeypatch.setattr(sys, "argv", ["benchmarks.engine", "--scale", "tiny", *arguments])
    main()


def _who(case: dict[str, list[dict[str, str]]], metric: str) -> set[str]:
    return {row["contender"] for row in case["rows"] if row["metric"] == metric}


@pytest.mark.skipif(not native.available(), reason="the compiled decoder drafts")
def test_a_model_is_trained_with_a_layer_that_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    model, data = tmp_path / "model", tmp_path / "data.json"
    train.main(f"--hybrid --out {model} --drill 0 --steps 1 --tokens 128".split())
    # when
    _run(monkeypatch, "--only", "own-drafts", "--drafting", str(model), "--json", str(data))
    # then
    measured = json.loads(data.read_text())["cases"]["own-drafts"]
    assert _who(measured, metric("stories", 1)) == {PLAIN, SPECULATING, TRAINED}


@pytest.mark.parametrize(("option", "wrong"), [("--only", "singel"), ("--peers", "statik")])
def test_an_unknown_name_is_refused(
    option: str, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # when
    with pytest.raises(SystemExit):
        _run(monkeypatch, option, wrong)
    # then
    assert f"unknown {wrong}" in capsys.readouterr().err


def test_vllm_is_frozen_while_it_is_not_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    (tmp_path / "vllm.py").write_text(_STAND_IN)
    (tmp_path / "torch.py").write_text('__version__ = "1"\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    work = Workload.draw(3, vocabulary=10, seed=0)
    # when
    with Vllm(Path(sys.executable), MODEL_PATH, "float32", 512, 8) as vllm:
        _wait_frozen(vllm.pid)
        run = vllm.run(work)
        intervals = vllm.intervals([1, 2], new_tokens=5)
        course = vllm.serve(Traffic([[1], [2]], new_tokens=9, arriving=[[3], [4]], every=4))
        _wait_frozen(vllm.pid)
        pid = vllm.pid
    # then
    assert vllm.versions == {"vllm": "0", "torch": "1"}
    run.check(work, vllm.name)
    assert run.outputs[0] == [work.prompts[0][-1]] * work.new_tokens[0]
    assert len(intervals) == 4
    assert (len(course.intervals), len(course.first_tokens)) == (2 * 8, 2)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_LLAMA_CPP = '''
"""As much of llama.cpp as the runner asks for: a token's logits are highest for the one behind it,
e times as likely as each of nine others."""
import ctypes
from types import SimpleNamespace as Something

__version__ = "0"
VOCABULARY = 10

def llama_print_system_info():
    return b"a stand-in"

def llama_model_default_params():
    return Something()

llama_context_default_params = llama_model_default_params

def llama_model_load_from_file(path, options):
    return path

def llama_init_from_model(model, params):
    assert params.n_ctx == 512 * params.n_seq_max
    return Something(logits=None)

def llama_model_get_vocab(model):
    return model

def llama_vocab_n_tokens(vocabulary):
    return VOCABULARY

def llama_batch_init(tokens, embedding, sequences):
    rows = [[0] * sequences for _ in range(tokens)]
    lists = {name: [0] * tokens for name in ("token", "pos", "n_seq_id", "logits")}
    return Something(n_tokens=0, seq_id=rows, **lists)

def llama_get_memory(context):
    context.lengths = {}
    return context.lengths

def llama_memory_clear(memory, data):
    memory.clear()

def llama_decode(context, batch):
    rows = []
    for index in range(batch.n_tokens):
        sequence = batch.seq_id[index][0]
        assert batch.pos[index] == context.lengths.get(sequence, 0), "it skips a position"
        context.lengths[sequence] = batch.pos[index] + 1
        if batch.logits[index]:
            following = (batch.token[index] + 1) % VOCABULARY
            rows += [float(token == following) for token in range(VOCABULARY)]
    context.logits = (ctypes.c_float * len(rows))(*rows)
    return 0

def llama_get_logits(context):
    return ctypes.cast(context.logits, ctypes.POINTER(ctypes.c_float))
'''


def test_llama_cpp_computes_all_requests_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    (tmp_path / "llama_cpp.py").write_text(_LLAMA_CPP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    work = Workload.draw(32, vocabulary=10, seed=0)  # its prompts take several batches
    # when
    limits = {"threads": 2, "batch": 32, "context": 512}
    with LlamaCpp("it", Path(sys.executable), tmp_path / "a.gguf", **limits) as peer:
        _wait_frozen(peer.pid)
        run = peer.run(work)
        intervals = peer.intervals([1, 2], new_tokens=5)
        long = peer.token_times([1] * 5000, new_tokens=2)
        loss = peer.loss([[3, 4, 5], [1, 2]])
    # then
    assert peer.greeting == {"version": "0", "system": "a stand-in"}
    run.check(work, peer.name)
    last = work.prompts[-1][-1]
    assert run.outputs[-1] == [(last + 1 + n) % 10 for n in range(work.new_tokens[-1])]
    assert len(intervals) == 4
    assert 0 < long[0] < long[1]
    assert loss == pytest.approx(3 * (math.log(math.e + 9) - 1), rel=1e-6)


_OPENVINO = '''
"""As much of OpenVINO GenAI as the runner asks for: a token is the one behind the last."""
from types import SimpleNamespace as Something

__version__ = "0"
GenerationConfig = Something

class SchedulerConfig:
    pass

class ContinuousBatchingPipeline:
    def __init__(self, folder, limits, device, properties):
        self._handles = []

    def add_request(self, number, ids, config):
        self._handles.append(Handle(int(ids[0][-1]), config.max_new_tokens))
        return self._handles[-1]

    def has_non_finished_requests(self):
        return any(handle.left for handle in self._handles)

    def step(self):
        for handle in self._handles:
            if handle.left:
                handle.left -= 1
                handle.made.append((handle.last + len(handle.made) + 1) % 10)
                handle.fresh = True

class Handle:
    def __init__(self, last, left):
        self.last, self.left, self.made, self.fresh = last, left, [], False

    def can_read(self):
        return self.fresh

    def read(self):
        self.fresh = False

    def read_all(self):
        return [Something(generated_ids=self.made)]
'''


def test_openvino_computes_all_requests_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    (tmp_path / "openvino_genai.py").write_text(_OPENVINO)
    (tmp_path / "openvino.py").write_text("def Tensor(numbers): return numbers\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    work = Workload.draw(4, vocabulary=10, seed=0)
    # when
    limits = {"threads": 2, "batch": 4, "step": 512, "context": 512}
    with OpenVino(Path(sys.executable), tmp_path / "int8", **limits) as peer:
        _wait_frozen(peer.pid)
        run = peer.run(work)
        times = peer.token_times([1, 2], new_tokens=5)
    # then
    assert (peer.name, peer.greeting) == ("OpenVINO int8", {"version": "0"})
    run.check(work, peer.name)
    last = work.prompts[-1][-1]
    assert run.outputs[-1] == [(last + 1 + n) % 10 for n in range(work.new_tokens[-1])]
    assert times == sorted(times)
    assert len(times) == 5


def test_a_vllm_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    (tmp_path / "vllm.py").write_text("raise ImportError('no kernels for this machine')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # when / then
    vllm = Vllm(Path(sys.executable), MODEL_PATH, "float32", 512, 8)
    with pytest.raises(RuntimeError, match="no kernels for this machine"), vllm:
        pass


def _wait_frozen(pid: int) -> None:
    """Until the kernel says that it is stopped: no signal arrives at once."""
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")


def test_a_peer_is_stopped_at_the_limit_of_time() -> None:
    # given
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH).eval()
    work = Workload.draw(1, 2048, seed=0)
    # when
    run = Continuous(model, max_step_tokens=512, limit_s=0.0).run(work)
    # then
    assert not run.complete
    assert run.tokens < work.tokens
    run.check(work, "it")


def test_a_run_of_other_lengths_is_refused() -> None:
    work = Workload.draw(2, 10, seed=0)
    with pytest.raises(RuntimeError, match="made 2 tokens"):
        Run(1.0, [[1], [2]]).check(work, "it")


def test_who_takes_part_in_fewer_rounds_is_compared_in_those() -> None:
    # given a peer that ran in the first round only
    board = Board("speed", base="roseinfer")
    board.add("roseinfer", {"tokens/s": 10})
    board.add("slow", {"tokens/s": 5})
    board.add("roseinfer", {"tokens/s": 100})
    # when / then
    assert board.ratios(("tokens/s", "roseinfer"), ("tokens/s", "slow")) == [2.0]


def test_each_round_has_other_prompts_of_the_same_lengths() -> None:
    # when
    first, second = (Workload.draw(32, 50_000, seed=seed) for seed in (0, 1))
    # then
    assert first.tokens == 2302
    assert [*map(len, first.prompts)] == [*map(len, second.prompts)]
    assert all(a != b for a, b in zip(first.prompts, second.prompts, strict=True))


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100)])
def test_percentiles_are_values_that_were_measured(percent: int, value: int) -> None:
    assert percentile([*range(1, 101)], percent) == value
