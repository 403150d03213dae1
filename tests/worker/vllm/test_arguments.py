"""Settings that vLLM or the worker refuses, before Redis is asked."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from rose.errors import ConfigurationError, ModelNotFound
from rose_worker.settings import WorkerSettings
from tests.support.command import run_rose
from tests.support.engines import set_variables, write_adapter

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def config_of(**settings: Any) -> Any:
    set_variables()
    from rose_worker.vllm.adapters import find_adapters
    from rose_worker.vllm.arguments import engine_config

    given = WorkerSettings(engine="vllm", **settings)
    return engine_config(given, find_adapters(given.adapters))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vllm_args": "--no-such-thing 1"}, "ROSE_VLLM_ARGS: .*no-such-thing"),
        ({"vllm_args": "--block-size many"}, "ROSE_VLLM_ARGS: .*block-size"),
        ({"vllm_args": '--block-size "16'}, "ROSE_VLLM_ARGS: No closing quotation"),
        ({"vllm_args": "--model elsewhere"}, "--model is set by ROSE_MODEL"),
        ({"vllm_args": "--max-num-seqs 3"}, "--max-num-seqs is set by ROSE_MAX_BATCH_SIZE"),
        ({"vllm_args": "--trust-remote-code"}, "no code of a model is run"),
        ({"vllm_args": "--load-format pt"}, "may read pickles"),
        ({"vllm_args": "--logits-processors a:b"}, "samples by its own"),
        ({"vllm_args": "--pipeline-parallel-size 0"}, "vLLM refuses this configuration"),
        ({"max_context": 1_000_000}, "vLLM refuses this configuration: .*1024"),
        ({"torch_threads": 2}, "ROSE_TORCH_THREADS is not for the engine vllm"),
        ({"adapters": "gruff"}, "'gruff' is not NAME=SOURCE"),
        ({"adapters": "a b=/tmp"}, "'a b=/tmp' is not NAME=SOURCE"),
        ({"adapters": "gruff=/nowhere"}, "no folder '/nowhere'"),
    ],
)
def test_what_is_not_possible_is_said(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        config_of(**wrong)
    assert "\n" not in str(caught.value)


def test_an_adapter_is_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    # given
    folder = write_adapter(tmp_path / "kind", 1)
    both = f"kind={folder},kind={folder}"
    # when / then
    with pytest.raises(ConfigurationError, match="'kind' twice"):
        config_of(adapters=both)
    with pytest.raises(ConfigurationError, match="--max-loras must be 2 on a CPU"):
        config_of(adapters=f"kind={folder}", vllm_args="--max-loras 4")
    config = json.loads((folder / "adapter_config.json").read_text())
    for rank, message in ((1000, "rank 1000, vLLM takes up to"), ("4", "the rank of 'kind' is")):
        (folder / "adapter_config.json").write_text(json.dumps({**config, "r": rank}))
        with pytest.raises(ConfigurationError, match=message):
            config_of(adapters=f"kind={folder}")
    # and: no pickle is read, not even where there is nothing else
    weights = folder / "adapter_model.safetensors"
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(ConfigurationError, match=r"no adapter_model\.safetensors in"):
        config_of(adapters=f"kind={folder}")


def test_settings_reach_vllm(tmp_path: Path) -> None:
    # given / when
    folder = write_adapter(tmp_path / "kind", 1, rank=12)
    config = config_of(
        max_batch_size=5,
        max_context=200,
        max_step_tokens=300,
        cuda_graphs=False,
        adapters=f"kind={folder}",
        vllm_args="--block-size 64 --no-enable-prefix-caching",
    )
    # then
    assert config.scheduler_config.max_num_seqs == 5
    assert config.scheduler_config.max_num_batched_tokens == 300
    assert config.scheduler_config.async_scheduling is False
    assert config.model_config.max_model_len == 200
    assert str(config.model_config.dtype) == "torch.float32"
    assert config.model_config.enforce_eager
    assert config.cache_config.block_size == 64
    assert not config.cache_config.enable_prefix_caching
    assert config.load_config.load_format == "safetensors"
    assert config.lora_config.max_lora_rank == 16


def test_a_step_has_as_many_tokens_as_in_vllms_own_server() -> None:
    for ranks in (1, 2):
        config = config_of(vllm_args=f"--tensor-parallel-size {ranks}")
        assert config.scheduler_config.max_num_batched_tokens == 2048 * ranks  # on a CPU
    chosen = config_of(max_step_tokens=256)
    assert chosen.scheduler_config.max_num_batched_tokens == 256


def test_a_model_that_is_not_there_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no folder"):
        config_of(model=str(tmp_path / "nothing"))


def test_redis_is_not_asked_before_vllm_agrees() -> None:
    # given
    set_variables()
    with socket.create_server(("127.0.0.1", 0)) as redis_to_be:
        url = f"redis://127.0.0.1:{redis_to_be.getsockname()[1]}"
        redis_to_be.setblocking(False)
        # when
        ended = run_rose(
            "worker", "--engine", "vllm", "--vllm-args=--block-size many", "--redis-url", url
        )
        # then
        assert ended.returncode == 2
        assert "ROSE_VLLM_ARGS: " in ended.stderr
        with pytest.raises(BlockingIOError):
            redis_to_be.accept()
