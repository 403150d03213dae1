"""vLLM's pooling models behind the worker's interface, beside roseinfer's own encoders."""

import random
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rose.errors import ConfigurationError, PromptTooLong
from rose.protocol import JobSpec
from rose.protocol.jobs import EncodeOptions
from rose_worker.settings import WorkerSettings
from tests.support.encoders import save_encoder, save_reranker, tokenizer
from tests.support.engines import set_variables

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

#: vLLM's attention on a CPU has heads of these sizes, not of any.
SIZES = {"hidden_size": 64, "num_attention_heads": 2}
DECODER = {**SIZES, "num_key_value_heads": 1, "head_dim": 32}
#: Of a number of a vector of length 1, and of a logit of a random model, which amplifies rounding.
TOLERANCE = {"embed": 2e-5, "score": 3e-4}


def texts(count: int) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices("abcdefgh ", k=draw.randint(1, 100))) for _ in range(count)]


def save(folder: Path, kind: str) -> Path:
    match kind:
        case "bert":
            dense = [(12, "Tanh")]
            cls = {"pooling_mode_cls_token": True}
            return save_encoder(folder, pooling=cls, dense=dense, normalize=True, sizes=SIZES)
        case "qwen3":
            last, prompts = {"pooling_mode_lasttoken": True}, {"query": "find: "}
            return save_encoder(
                folder, "qwen3", pooling=last, normalize=True, prompts=prompts, sizes=DECODER
            )
    return save_encoder(folder, labels=3, own_tokenizer=tokenizer(types=True), sizes=SIZES)


def settings(folder: Path, **others: Any) -> WorkerSettings:
    return WorkerSettings(model=str(folder), max_batch_size=4, **others)


@pytest.fixture(scope="module", params=["bert", "qwen3", "score"])
def engines(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """vLLM and the own engine with the same model."""
    set_variables()
    from rose_worker import rose_encoder
    from rose_worker.vllm import loader

    folder = save(tmp_path_factory.mktemp(request.param) / "m", request.param)
    task = "score" if request.param == "score" else "embed"
    own = rose_encoder.load(settings(folder, device="cpu"), task)
    vllm: Any = loader(settings(folder, engine="vllm", cuda_graphs=False))()
    with closing(vllm._encoder):
        yield vllm, own


def answers(engine: Any, jobs: list[JobSpec]) -> Mapping[str, list[list[float]]]:
    for job in jobs:
        engine.add(engine.prepare(job, ()))
    rows = {}
    while engine.has_work:
        for output in engine.step():
            numbers = output.numbers
            assert (output.finish_reason, output.error) == ("stop", None)
            rows[output.request_id] = [list(array("f", row)) for row in numbers.rows()]
    return rows


def test_its_numbers_are_those_of_the_other_engine(engines: tuple[Any, Any]) -> None:
    vllm, own = engines
    scores = vllm.model.task == "score"
    options = EncodeOptions(task="score", queries=("who won?",)) if scores else EncodeOptions()
    jobs = [
        JobSpec(id=f"job-{number}", prompt=tuple(texts(number)), encode=options)
        for number in (1, 9, 40)
    ]

    found, expected = answers(vllm, jobs), answers(own, jobs)

    assert (vllm.model.engine, vllm.model.task) == ("vllm", own.model.task)
    for job in jobs:
        for row, wanted in zip(found[job.id], expected[job.id], strict=True):
            assert row == pytest.approx(wanted, abs=TOLERANCE[vllm.model.task])


def test_jobs_end_as_with_the_other_engine(engines: tuple[Any, Any]) -> None:
    vllm, _ = engines
    scores = vllm.model.task == "score"
    options = EncodeOptions(task="score", queries=("q",)) if scores else EncodeOptions()
    jobs = [JobSpec(id=name, prompt=("a", "b"), encode=options) for name in ("aborted", "kept")]
    for job in jobs:
        vllm.add(vllm.prepare(job, ()))

    vllm.abort("aborted")

    outputs = vllm.step()
    assert [(one.request_id, one.numbers.row_count) for one in outputs] == [("kept", 2)]
    assert not vllm.has_work
    with pytest.raises(PromptTooLong, match="128"):
        vllm.prepare(JobSpec(id="long", prompt=("a" * 200,), encode=options), ())


@pytest.mark.parametrize(
    ("options", "others", "message"),
    [
        ({"pooling": {"pooling_mode_max_tokens": True}}, {}, "pools by cls, mean or lasttoken"),
        (
            {
                "pooling": {"pooling_mode_mean_tokens": True, "include_prompt": False},
                "prompts": {"q": "find: "},
            },
            {},
            "pools prompts too",
        ),
        ({}, {"adapters": "law=/nowhere"}, "ROSE_ADAPTERS is for models that generate"),
        ({}, {"vllm_args": "--runner generate"}, "--runner is set by ROSE_TASK"),
        ({}, {"weights": "int8"}, "ROSE_WEIGHTS is not for the engine vllm"),
    ],
)
def test_what_vllm_cannot_compute_is_refused(
    tmp_path: Path, options: dict[str, Any], others: dict[str, Any], message: str
) -> None:
    set_variables()
    from rose_worker.vllm import loader

    folder = save_encoder(tmp_path / "m", sizes=SIZES, **options)

    with pytest.raises(ConfigurationError, match=message):
        loader(settings(folder, engine="vllm", **others))


def test_a_decoder_that_says_yes_or_no_is_refused(tmp_path: Path) -> None:
    set_variables()
    from rose_worker.vllm import loader

    with pytest.raises(ConfigurationError, match="serve it by the engine rose"):
        loader(settings(save_reranker(tmp_path / "m"), engine="vllm"))
