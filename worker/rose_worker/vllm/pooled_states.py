"""vLLM's workers without the dense layers that follow the pooling in sentence-transformers' files:
`roseinfer.encoders` has them, all kinds of them, in float32. vLLM imports this in each rank."""

from vllm.model_executor.layers.pooler.seqwise import poolers

from rose_worker.vllm.ranks import end_with_parent


def _no_projector(_config: object) -> None:
    pass


poolers._load_st_projector = _no_projector
end_with_parent()


class Extension:
    """Of a worker of vLLM: it is there so that this module is imported."""
