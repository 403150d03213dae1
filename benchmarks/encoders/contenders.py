"""Ours and its peers, all in this process, with the same weights."""

import itertools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoModel

from benchmarks.encoders.models import pooling_of
from roseinfer.encoders.encoder import Encoder
from roseinfer.encoders.scheduler import EncodingRequest, EncodingScheduler

_MAX_STEP_TOKENS = 1024  # the worker's default

Vectors = NDArray[np.float32]


class Contender(ABC):
    name: str

    @abstractmethod
    def embed(self, texts: Sequence[str], callers: int) -> Vectors:
        """Of each of `texts`, which `callers` have, each one text at a time."""


class Ours(Contender):
    """A caller's next text comes when its last is answered."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        self.name = "roseinfer" if dtype == "float32" else f"roseinfer {dtype}"
        self._encoder = Encoder(str(folder), "embed", dtype=dtype)

    def embed(self, texts: Sequence[str], callers: int) -> Vectors:
        encoder, rows = self._encoder, np.empty((len(texts), self._encoder.width), np.float32)
        scheduler = EncodingScheduler(encoder, callers, _MAX_STEP_TOKENS)
        waiting = enumerate(texts)

        def add(count: int) -> None:
            for number, text in itertools.islice(waiting, count):
                inputs = encoder.tokenizer.tokenize([text])
                scheduler.add(EncodingRequest(str(number), inputs, encoder.width))

        add(callers)
        while scheduler.has_unfinished:
            outputs = scheduler.step()
            for output in outputs:
                assert output.numbers is not None, output.error  # noqa: S101
                rows[int(output.request_id)] = np.frombuffer(output.numbers.data, np.float32)
            add(len(outputs))
        return rows


class Batched(Contender):
    """A server that computes what waits: one text of each caller at a time."""

    def embed(self, texts: Sequence[str], callers: int) -> Vectors:
        parts = [texts[at : at + callers] for at in range(0, len(texts), callers)]
        return np.concatenate([self._batch(part) for part in parts])

    @abstractmethod
    def _batch(self, texts: Sequence[str]) -> Vectors: ...


class SentenceTransformers(Batched):
    name = "sentence-transformers"

    def __init__(self, folder: Path) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(folder), device="cpu")

    def _batch(self, texts: Sequence[str]) -> Vectors:
        vectors: Vectors = self._model.encode(list(texts), show_progress_bar=False)
        return vectors


class PaddedGraph(Batched):
    """A graph of padded batches. As fastembed, it pads to the longest of its batch."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_padding(pad_id=0)
        pooled = _Pooled(
            AutoModel.from_pretrained(folder, attn_implementation="sdpa"), pooling_of(folder)
        )
        self.load(pooled.eval())

    def _batch(self, texts: Sequence[str]) -> Vectors:
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        ids = np.array([one.ids for one in encodings], np.int64)
        return self.run(ids, np.array([one.attention_mask for one in encodings], np.int64))

    @abstractmethod
    def load(self, model: nn.Module) -> None: ...

    @abstractmethod
    def run(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors: ...


class OnnxRuntime(PaddedGraph):
    """What fastembed runs."""

    name = "onnxruntime"

    def load(self, model: nn.Module) -> None:
        import onnxruntime

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            torch.onnx.export(
                model,
                _example(),
                path,
                input_names=["ids", "mask"],
                output_names=["vectors"],
                dynamic_shapes=({0: "texts", 1: "tokens"}, {0: "texts", 1: "tokens"}),
                dynamo=True,
                external_data=True,
            )
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            self._session = onnxruntime.InferenceSession(path, options)

    def run(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        vectors: Vectors = self._session.run(None, {"ids": ids, "mask": mask})[0]
        return vectors


class OpenVino(PaddedGraph):
    name = "OpenVINO"

    def load(self, model: nn.Module) -> None:
        import openvino

        shapes = [openvino.PartialShape([-1, -1])] * 2
        converted = openvino.convert_model(model, example_input=_example(), input=shapes)
        hints = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        self._compiled = openvino.compile_model(converted, "CPU", hints)

    def run(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        vectors: Vectors = self._compiled([ids, mask])[0]
        return vectors


PEERS: dict[str, type[SentenceTransformers | OnnxRuntime | OpenVino]] = {
    "sentence_transformers": SentenceTransformers,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
}
"""By the packages that they need."""


class _Pooled(nn.Module):
    """The whole of a model: token ids and mask to vectors of length 1."""

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        model.config.use_cache = False
        self.model, self._pooling = model, pooling

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        if self._pooling == "cls":
            vectors = hidden[:, 0]
        elif self._pooling == "mean":
            counted = mask[..., None].to(hidden.dtype)
            vectors = (hidden * counted).sum(1) / counted.sum(1)
        else:
            last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
            vectors = hidden.gather(1, last)[:, 0]
        return nn.functional.normalize(vectors, dim=-1)


def _example() -> tuple[Tensor, Tensor]:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    return torch.randint(4, 1000, (2, 7)), mask
