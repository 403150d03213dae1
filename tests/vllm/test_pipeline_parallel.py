"""A model in two stages, each a process of its own: the same tokens as from our own engine."""

from contextlib import closing

import pytest

from rose_worker.rose_engine import RoseEngine
from rose_worker.settings import WorkerSettings
from tests.support.engines import FEATURES, SETTINGS, answers, jobs, set_variables

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(2400),
    pytest.mark.filterwarnings("ignore"),
]

#: Not compiled, for which there is no time. But it must look as if it were: vLLM's stages make
#: their buffers while a compiled model warms up, and fail without them.
TWO_STAGES = "--pipeline-parallel-size 2 -cc.backend=eager"


def test_a_model_in_two_stages_says_the_same() -> None:
    # given
    set_variables()
    from rose_worker.vllm import loader

    specs = jobs(FEATURES)
    expected = answers(RoseEngine(WorkerSettings(**SETTINGS["rose"], max_context=1024)), specs)
    # when
    with closing(loader(WorkerSettings(**SETTINGS["vllm"], vllm_args=TWO_STAGES))()) as two_stages:
        got = answers(two_stages, specs)
    # then
    assert two_stages.model.decoder == "vLLM, tensor parallel 1, pipeline parallel 2"
    for name, answer in expected.items():
        assert (got[name].token_ids, got[name].text) == (answer.token_ids, answer.text), name
