"""An encoder in memory: its tokenizer, transformers' model, and what follows it."""

import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    MODEL_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

from rose.errors import ConfigurationError, ModelNotFound, UnsupportedModel
from roseinfer.checkpoints.configuration import load_config
from roseinfer.checkpoints.fingerprint import fingerprint
from roseinfer.checkpoints.gguf.header import ANSWER_ROWS
from roseinfer.checkpoints.gguf.layouts import lazy_parameters, read_tensor
from roseinfer.checkpoints.location import locate
from roseinfer.checkpoints.safetensors_files import check_index
from roseinfer.checkpoints.sources import model_name
from roseinfer.checkpoints.target import parse_target
from roseinfer.checkpoints.transformers_messages import first_line, quiet, unsupported
from roseinfer.checkpoints.weights import load_model
from roseinfer.encoders import model_files
from roseinfer.encoders.input_rules import read_inputs
from roseinfer.encoders.model_files import Dense, GgufTokenScore, LayerNorm, ModelFiles
from roseinfer.encoders.packing import Packing
from roseinfer.encoders.pooling import Head, activate, cut, pool
from roseinfer.encoders.scoring import Classifier, TokenLogits, padded
from roseinfer.encoders.tokens import EncodedInput, InputRules, InputTokenizer
from roseinfer.model.quantization import FROM_FILE, format_name

log = logging.getLogger(__name__)

#: Heads that a checkpoint may have and an embedding does without.
_OTHER_HEADS = ("cls.", "lm_head.", "classifier.", "pooler.", "decoder.", "head.", "vocab_")
#: A padded batch ends where the next input would be padded by more than a half, unless it is small.
_SHORTEST = 0.67
_SMALL_BATCH_TOKENS = 128


class Encoder:
    """Turns texts into vectors (`task` embed), or pairs of texts into scores.

    Where its layers are compiled, a vector is the same bits in any batch. By transformers' own code
    it depends on its batch within the tolerance of the dtype: in float32 some 1e-6 of its length.
    """

    def __init__(
        self,
        source: str,
        task: Literal["embed", "score"],
        *,
        tokenizer: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        weights: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """`source`: a folder or a name on the hub. `weights`: int8 or int4, the rest in bfloat16.
        `max_tokens`: of a text, below what the model takes.

        Raises: ModelNotFound, UnsupportedModel, ConfigurationError
        """
        folder = model_files.folder_of(source)
        scores = task == "score"
        self._files = (
            model_files.read_scorer(folder) if scores else model_files.read_embedder(folder)
        )
        self._device, own_dtype = parse_target(device, dtype, weights)
        if weights == FROM_FILE:
            raise ConfigurationError(
                f"weights={weights!r} is for models that generate: take int8 or int4"
            )
        loader: Any = AutoModel
        if scores:
            causal = self._files.token_score is not None
            loader = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
        model = _load_model(self._files.transformer, self._device, own_dtype, loader)
        config = model.config
        self.name = model_name(source)
        inputs = read_inputs(
            self.name,
            folder,
            self._files,
            config,
            scores=scores,
            tokenizer=tokenizer,
            max_tokens=max_tokens,
        )
        loaded = inputs.tokenizer
        self._pad = next(
            (one for one in (loaded.pad_token_id, config.pad_token_id) if one is not None), 0
        )
        self.max_tokens = inputs.rules.max_tokens
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.device = str(self._device)
        own = fingerprint(str(self._files.transformer), inputs.source, model, format_name(weights))
        self._classifier: Classifier | None = None
        self._head: Head | TokenLogits | None = None
        if not scores:
            width = int(config.get_text_config().hidden_size) * len(self._files.pooling)
            self._head = head = Head(self._files.head, width, self._device, self._files.dimensions)
            self.width = head.width
        elif self._files.token_score is None:
            self._classifier = Classifier(model, self._pad)
            self.width = int(config.num_labels)
        else:
            self._head = _token_logits(model, self._files, loaded)
            self.width = 1
        self.fingerprint = with_head(own, self._files, inputs.rules)
        self._activation = activation_of(self._files, self.width, scores=scores)
        if self._classifier is not None:
            self._model = self._classifier.transformer
        else:
            self._model = model.base_model if scores else model
        self._has_types = inputs.rules.has_types
        self.tokenizer = InputTokenizer(inputs.rules)
        self._packing = self._packed(weights)  # it takes weights from the model

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts that the model wants before others, by their names."""
        return self._files.prompts

    @property
    def packs(self) -> bool:
        """Whether inputs of any lengths are computed without padding."""
        return self._packing is not None

    @property
    def is_compiled(self) -> bool:
        """Whether what is computed of an input is the same bits in any batch."""
        return self._packing is not None and self._packing.is_compiled

    def _packed(self, weights: str | None) -> Packing | None:
        reason: Packing | str = ""
        if self._classifier is not None:
            reason = self._classifier.fault(self.max_tokens)
        reason = reason or Packing.of(self._model, self.max_tokens, weights)
        if isinstance(reason, Packing):
            return reason
        if weights is not None:
            raise unsupported(
                self._model.config,
                f"weights={weights!r} is for compiled layers alone, and {reason}",
            )
        log.info("texts are computed in padded batches: %s", reason)
        return None

    @torch.inference_mode()
    def encode(self, inputs: Sequence[EncodedInput]) -> Tensor:
        """A row of float32 on the CPU for each input."""
        if self._classifier is not None:
            numbers = self._logits(self._classifier, inputs)
        else:
            assert self._head is not None  # noqa: S101 - a model has one or the other
            modes = self._files.pooling
            states = zip(inputs, self._hidden_states(inputs), strict=True)
            vectors = [
                pool(
                    rows[min(one.prompt_tokens, len(rows) - 1) :].float(), one.prompt_tokens, modes
                )
                for one, rows in states
            ]
            rows = torch.stack(vectors)
            # The bits of a product may depend on how many rows it has.
            parts = torch.split(rows, 1) if self.is_compiled else [rows]
            numbers = torch.cat([self._head(part) for part in parts])
        return activate(self._activation, numbers).cpu()

    def _logits(self, classifier: Classifier, inputs: Sequence[EncodedInput]) -> Tensor:
        states = None if self._packing is None else self._hidden_states(inputs)

        def compute(batch: list[int]) -> Tensor:
            hidden = None if states is None else padded([states[number] for number in batch])
            return classifier.logits(self._padded([inputs[number] for number in batch]), hidden)

        if self.is_compiled:
            return torch.cat([compute([number]) for number in range(len(inputs))]).float()
        return torch.stack(_in_batches(inputs, compute)).float()

    def _hidden_states(self, inputs: Sequence[EncodedInput]) -> Sequence[Tensor]:
        """Of each input [tokens, width]."""
        if self._packing is not None:
            types = [one.types for one in inputs] if self._has_types else None
            return self._packing.hidden_states([one.ids for one in inputs], types)

        def compute(batch: list[int]) -> Tensor:
            states = self._model(**self._padded([inputs[number] for number in batch]))
            hidden: Tensor = states.last_hidden_state
            return hidden

        rows = zip(_in_batches(inputs, compute), inputs, strict=True)
        return [row[: len(one.ids)] for row, one in rows]

    def _padded(self, inputs: Sequence[EncodedInput]) -> dict[str, Tensor]:
        """The model's arguments for a batch that is padded on the right."""
        texts = [torch.tensor(one.ids) for one in inputs]
        arguments = {
            "input_ids": padded(texts, self._pad),
            "attention_mask": padded([torch.ones_like(ids) for ids in texts]),
        }
        if self._has_types:
            types = [one.types or (0,) * len(one.ids) for one in inputs]
            arguments["token_type_ids"] = padded([torch.tensor(own) for own in types])
        return {name: value.to(self._device) for name, value in arguments.items()}

    def shortened(self, rows: Tensor, dimensions: int) -> Tensor:
        """The first numbers of each row, of length 1 where the model's vectors are (Matryoshka)."""
        if dimensions == self.width or not isinstance(self._head, Head):
            return rows
        return cut(rows, dimensions, normalize=self._head.normalizes)


def _in_batches(
    inputs: Sequence[EncodedInput], compute: Callable[[list[int]], Tensor]
) -> list[Tensor]:
    """What is computed of each input, some by their numbers at a time."""
    rows: dict[int, Tensor] = {}
    for batch in _of_similar_lengths(inputs):
        rows |= dict(zip(batch, compute(batch), strict=True))
    return [rows[number] for number in range(len(inputs))]


def _of_similar_lengths(inputs: Sequence[EncodedInput]) -> Iterator[list[int]]:
    """Batches of the inputs' numbers, the longest first."""
    batch: list[int] = []
    longest = 0
    for number in sorted(range(len(inputs)), key=lambda number: -len(inputs[number].ids)):
        length = len(inputs[number].ids)
        is_small = longest * len(batch) < _SMALL_BATCH_TOKENS
        if batch and length < _SHORTEST * longest and not is_small:
            yield batch
            batch = []
        if not batch:
            longest = length
        batch.append(number)
    if batch:
        yield batch


def _token_logits(model: Any, files: ModelFiles, tokenizer: Any) -> TokenLogits:
    """Raises: UnsupportedModel"""
    if isinstance(score := files.token_score, GgufTokenScore):
        rows = read_tensor(score.file, score.tensor).to(model.device)
        if len(rows) > 2 or rows.shape[1:] != (model.config.hidden_size,):
            raise UnsupportedModel(
                f"{score.tensor} of {str(score.file)!r} has the sizes {list(rows.shape)}: it is to "
                f"have one or two rows of {model.config.hidden_size} numbers"
            )
        return TokenLogits(rows)
    assert score is not None  # noqa: S101 - the caller has seen it
    ids: list[int | None] = []
    for token in (score.yes, score.no):
        own = tokenizer.backend_tokenizer.token_to_id(token) if isinstance(token, str) else token
        if own is None and token is not None:
            raise UnsupportedModel(f"its tokenizer has no token {token!r}, which is to be scored")
        ids.append(own)
    yes, no = ids
    assert yes is not None  # noqa: S101 - just seen
    return TokenLogits.of_model(model, yes, no)


def activation_of(files: ModelFiles, width: int, *, scores: bool) -> str:
    """Of the numbers of a model that has so many for an input."""
    return files.activation or ("Sigmoid" if scores and width == 1 else "Identity")


def with_head(own: str, files: ModelFiles, rules: InputRules) -> str:
    """The fingerprint of a model, by its own and by what its vectors depend on beside it."""
    said = (files.pooling, files.pools_prompt, files.lower_case, files.activation, rules.max_tokens)
    digest = hashlib.sha256(f"{own}\0{said}\0{sorted(files.prompts.items())}".encode())
    if rules.pair_format or files.token_score is not None:
        digest.update(f"{rules.pair_format}{files.token_score}".encode())
    digest.update(str(files.default_prompt).encode())
    if rules.text_formats or files.dimensions is not None:
        digest.update(f"{sorted(rules.text_formats.items())}{files.dimensions}".encode())
    for part in files.head:
        digest.update(f"\0{type(part).__name__}".encode())
        if isinstance(part, Dense | LayerNorm):  # a GGUF file's are in the model's own
            for name in ("config.json", "model.safetensors"):
                digest.update((part.folder / name).read_bytes())
    return digest.hexdigest()[:16]


def _load_model(folder: Path, device: torch.device, dtype: torch.dtype | None, loader: Any) -> Any:
    """`folder`: or a GGUF file."""
    with locate(str(folder)) as location:
        if location.header is not None and location.layout is None:
            scores = loader is AutoModelForCausalLM
            besides = (ANSWER_ROWS,) if scores else ()
            decoder = load_model(str(folder), device, dtype, besides=besides).model
            decoder.set_attn_implementation("sdpa")
            decoder.requires_grad_(False)
            return decoder if scores else decoder.base_model
        config = load_config(location)
    source: Path | None = folder
    arguments: dict[str, Any] = {"dtype": dtype or "auto"}
    if location.layout is not None:
        own = dtype or torch.bfloat16
        parameters = lazy_parameters(folder, location.layout, own)
        source, arguments = None, {"dtype": own, "state_dict": parameters}
    else:
        check_index(str(folder))
    if any_head := loader is AutoModel:
        known = MODEL_MAPPING.get(type(config), None)
        known = known[0] if isinstance(known, tuple) else known
        if known is not None and "add_pooling_layer" in inspect.signature(known).parameters:
            arguments["add_pooling_layer"] = False  # of BERT's first pre-training
    if source is None:  # they look for a folder's files all the same
        loader = loader._model_mapping[type(config)]
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with quiet():
        try:
            model, info = loader.from_pretrained(
                source,
                config=config,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the check below names them
                **arguments,
            )
        except OSError as error:
            raise ModelNotFound(
                f"no safetensors weights at {str(folder)!r}: {first_line(error)}"
            ) from error
        except UnsupportedModel:
            raise
        except Exception as error:
            raise unsupported(config, first_line(error)) from error
    _check_complete(config, info, any_head=any_head)
    return model.to(device).eval().requires_grad_(False)


def _check_complete(config: Any, info: Mapping[str, Any], *, any_head: bool) -> None:
    """Raises: UnsupportedModel: transformers has made numbers up, or left some out."""
    for what in ("missing_keys", "mismatched_keys"):
        if keys := sorted(map(str, info.get(what) or ())):
            raise unsupported(
                config, f"{len(keys)} of its weights do not fit ({what}), {keys[0]} among them"
            )
    unread = [
        name
        for name in sorted(info.get("unexpected_keys") or ())
        if not name.endswith(("position_ids", "inv_freq"))
        and not (any_head and name.startswith(_OTHER_HEADS))
    ]
    if unread:
        raise unsupported(
            config, f"nothing reads {len(unread)} tensors of it, {unread[0]} among them"
        )
