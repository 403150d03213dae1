"""vLLM's pooling models behind the worker's protocol.

texts -> InputTokenizer -> ids -> vLLM -> pooled states or logits -> Head, activation -> rows
"""

import atexit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm import PoolingParams
from vllm.inputs.engine import tokens_input

from rose.errors import ConfigurationError, UnsupportedModel
from rose_worker.preparation import Preparer
from rose_worker.rose_encoder import EncoderEngine, EncoderTask, model_of
from rose_worker.settings import WorkerSettings
from rose_worker.vllm.arguments import Pooling, pooling_config
from rose_worker.vllm.llm import start_llm, stop_llm
from roseinfer.checkpoints.configuration import load_config
from roseinfer.checkpoints.fingerprint import fingerprint_of_files
from roseinfer.checkpoints.location import locate
from roseinfer.checkpoints.sources import model_name
from roseinfer.checkpoints.transformers_messages import first_line
from roseinfer.encoders import model_files
from roseinfer.encoders.encoder import activation_of, with_head
from roseinfer.encoders.input_rules import ReadInputs, read_inputs
from roseinfer.encoders.model_files import ModelFiles
from roseinfer.encoders.pooling import Head, activate, cut
from roseinfer.encoders.tokens import EncodedInput, InputTokenizer

#: vLLM's names of poolings.
_POOLINGS: dict[tuple[str, ...], str] = {("cls",): "CLS", ("mean",): "MEAN", ("lasttoken",): "LAST"}


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    task: EncoderTask
    files: ModelFiles
    config: Any
    """of transformers"""
    inputs: ReadInputs


def encoder_loader(
    settings: WorkerSettings, task: EncoderTask, preparer: Preparer | None
) -> Callable[[], EncoderEngine]:
    """Check the settings and the model's files; the result loads the model.

    Raises: ConfigurationError, ModelNotFound, UnsupportedModel
    """
    checkpoint = _read(settings, task)
    files, rules = checkpoint.files, checkpoint.inputs.rules
    pooling = None if task == "score" else _POOLINGS[files.pooling]
    config = pooling_config(settings, Pooling(files.transformer, rules.max_tokens, pooling))

    def load() -> EncoderEngine:
        return EncoderEngine(
            VllmEncoder(checkpoint, config),
            task,
            settings.max_batch_size,
            config.scheduler_config.max_num_batched_tokens,
            preparer,
            engine="vllm",
            decoder=f"vLLM, tensor parallel {config.parallel_config.tensor_parallel_size}",
        )

    return load


def _read(settings: WorkerSettings, task: EncoderTask) -> _Checkpoint:
    source = model_of(settings, task)
    folder = model_files.folder_of(source)
    scores = task == "score"
    files = model_files.read_scorer(folder) if scores else model_files.read_embedder(folder)
    if reason := _reason_against(files, scores=scores):
        raise ConfigurationError(
            f"ROSE_MODEL={source}: the engine vllm {reason}: serve it by the engine rose"
        )
    with locate(str(files.transformer)) as location:
        config = load_config(location)
    inputs = read_inputs(
        model_name(source),
        folder,
        files,
        config,
        scores=scores,
        tokenizer=settings.tokenizer,
        max_tokens=settings.max_context,
    )
    return _Checkpoint(task, files, config, inputs)


def _reason_against(files: ModelFiles, *, scores: bool) -> str:
    if files.token_score is not None:
        return "scores by a model's own head, and this one by the logits of tokens"
    if not scores and files.pooling not in _POOLINGS:
        return f"pools by cls, mean or lasttoken, and this model by {', '.join(files.pooling)}"
    if not scores and files.prompts and not files.pools_prompt:
        return "pools prompts too, and this model's are left out"
    return ""


def _unsupported(name: str, error: Exception) -> UnsupportedModel:
    return UnsupportedModel(
        f"vLLM cannot serve {name} ({first_line(error)}): serve it by the engine rose"
    )


class VllmEncoder:
    """See Encoder, whose results it gives but for rounding."""

    def __init__(self, checkpoint: _Checkpoint, config: Any) -> None:
        """Load the model of a `VllmConfig`, and try it. Raises: UnsupportedModel"""
        files, rules, model = checkpoint.files, checkpoint.inputs.rules, config.model_config
        self._scores = checkpoint.task == "score"
        try:
            self._llm = start_llm(config)
        except Exception as error:
            raise _unsupported(rules.model, error) from error
        atexit.register(self.close)
        self._head: Head | None = None
        if self._scores:
            self.width = int(checkpoint.config.num_labels)
        else:
            hidden = int(checkpoint.config.get_text_config().hidden_size)
            self._head = Head(files.head, hidden, torch.device("cpu"), files.dimensions)
            self.width = self._head.width
        self._activation = activation_of(files, self.width, scores=self._scores)
        self.name = rules.model
        self.max_tokens = rules.max_tokens
        self.device = str(config.device_config.device_type)
        self.dtype = str(model.dtype).removeprefix("torch.")
        own = fingerprint_of_files(str(files.transformer), checkpoint.inputs.source, model.dtype)
        self.fingerprint = with_head(own, files, rules)
        self.tokenizer = InputTokenizer(rules)
        try:
            for length in (1, 5):
                self.encode([EncodedInput((0,) * min(length, self.max_tokens))])
        except Exception as error:
            raise _unsupported(rules.model, error) from error

    @torch.inference_mode()
    def encode(self, inputs: Sequence[EncodedInput]) -> Tensor:
        """A row of float32 on the CPU for each input."""
        for number, one in enumerate(inputs):
            self._llm.add_request(str(number), tokens_input(list(one.ids)), self._params(one))
        rows: dict[int, Tensor] = {}
        while len(rows) < len(inputs):
            for result in self._llm.step():
                rows[int(result.request_id)] = result.outputs.data
        numbers = torch.stack([rows[number].float().cpu() for number in range(len(inputs))])
        return activate(self._activation, numbers if self._head is None else self._head(numbers))

    def shortened(self, rows: Tensor, dimensions: int) -> Tensor:
        """The first numbers of each row, of length 1 where the model's vectors are (Matryoshka)."""
        if dimensions == self.width or self._head is None:
            return rows
        return cut(rows, dimensions, normalize=self._head.normalizes)

    def close(self) -> None:
        """End the processes of vLLM's executor."""
        atexit.unregister(self.close)
        stop_llm(self._llm)

    def _params(self, one: EncodedInput) -> PoolingParams:
        """Without vLLM's activation, which is not what the model's files say. It takes the place of
        the first token of the second text for the types of all."""
        return PoolingParams(
            task="classify" if self._scores else "embed",
            use_activation=False,
            extra_kwargs=one.types and {"compressed_token_type_ids": one.types.index(1)},
        )
