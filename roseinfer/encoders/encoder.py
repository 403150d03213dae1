"""An encoder in memory: its tokenizer, transformers' model, and what follows it."""

import hashlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor
from transformers import MODEL_MAPPING, AutoModel, AutoModelForSequenceClassification

from rose.errors import InvalidParameter, ModelNotFound, PromptTooLong, UnsupportedModel
from rose.validation import lone_surrogate
from roseinfer.checkpoints.configuration import load_config
from roseinfer.checkpoints.fingerprint import fingerprint
from roseinfer.checkpoints.location import locate
from roseinfer.checkpoints.safetensors_files import check_index
from roseinfer.checkpoints.sources import model_name
from roseinfer.checkpoints.target import parse_device, parse_dtype
from roseinfer.checkpoints.tokenizer import load_tokenizer
from roseinfer.checkpoints.transformers_messages import first_line, quiet, unsupported
from roseinfer.encoders import model_files
from roseinfer.encoders.model_files import ModelFiles, Normalize
from roseinfer.encoders.packing import Packing
from roseinfer.encoders.pooling import Head, activate, cut, pool

log = logging.getLogger(__name__)

#: Heads that a checkpoint may have and an embedding does without.
_OTHER_HEADS = ("cls.", "lm_head.", "classifier.", "pooler.", "decoder.", "head.", "vocab_")
#: Where a model does not say how many positions it has.
_UNKNOWN_POSITIONS = 8192


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """The tokens of a text, or of a pair of texts."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None = None
    """0 for those of the first text and 1 for the second's, for a model that tells them apart"""
    prompt_tokens: int = 0
    """of the prompt before it, where these take no part in the pooling"""


class Encoder:
    """Turns texts into vectors (`task` embed), or pairs of texts into scores.

    It computes by transformers' own code. A vector depends on its batch within the tolerance of the
    dtype: in float32 some 1e-6 of its length.
    """

    def __init__(
        self,
        source: str,
        task: Literal["embed", "score"],
        *,
        tokenizer: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """`source`: a folder or a name on the hub. `max_tokens`: of a text, below what the model
        takes. Raises: ModelNotFound, UnsupportedModel, ConfigurationError"""
        folder = model_files.folder_of(source)
        scores = task == "score"
        self._files = (
            model_files.read_scorer(folder) if scores else model_files.read_embedder(folder)
        )
        self._device = parse_device(device)
        self._model = _load_model(
            self._files.transformer, self._device, parse_dtype(dtype, self._device), scores=scores
        )
        tokenizer_source = tokenizer or str(_tokenizer_folder(folder, self._files))
        loaded = load_tokenizer(tokenizer_source)
        self._tokenizer: Tokenizer = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
        self._specials = {loaded.cls_token_id, loaded.sep_token_id, loaded.eos_token_id} - {None}
        config = self._model.config
        self._pad = next(
            (one for one in (loaded.pad_token_id, config.pad_token_id) if one is not None), 0
        )
        takes_types = "token_type_ids" in inspect.signature(self._model.forward).parameters
        given = loaded.init_kwargs.get("model_input_names") or ("token_type_ids",)
        self._has_types = (
            takes_types and getattr(config, "type_vocab_size", 0) > 1 and "token_type_ids" in given
        )
        self.max_tokens = _max_tokens(self._files, config, loaded, max_tokens)
        self.vocab_size = int(config.get_text_config().vocab_size)
        self._cutting = Tokenizer.from_str(self._tokenizer.to_str())
        self._cutting.enable_truncation(self.max_tokens)
        self._prompt_lengths: dict[str, int] = {}
        if scores:
            self._head = None
            self.width = int(config.num_labels)
            self._activation = self._files.activation or (
                "Sigmoid" if self.width == 1 else "Identity"
            )
        else:
            hidden = int(config.get_text_config().hidden_size)
            self._head = Head(self._files.head, hidden * len(self._files.pooling), self._device)
            self.width = self._head.width
        self.name = model_name(source)
        own = fingerprint(str(self._files.transformer), tokenizer_source, self._model)
        self.fingerprint = _with_head(own, self._files, self.max_tokens)
        self.dtype = str(self._model.dtype).removeprefix("torch.")
        self.device = str(self._device)
        self._packing = None if scores else self._packed()  # it takes weights from the model

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts that the model wants before others, by their names."""
        return self._files.prompts

    @property
    def packs(self) -> bool:
        """Whether inputs of any lengths are computed without padding."""
        return self._packing is not None

    def _packed(self) -> Packing | None:
        packing = Packing.of(self._model, self.max_tokens)
        if isinstance(packing, Packing):
            return packing
        log.info("texts are computed in padded batches: %s", packing)
        return None

    # Tokens

    def tokenize(
        self,
        inputs: Sequence[str | Sequence[int]],
        *,
        prompt_name: str | None = None,
        truncate: bool = False,
    ) -> list[EncodedInput]:
        """Texts, each behind the prompt of this name, and token ids, which stay as they are.

        Raises: InvalidParameter, PromptTooLong
        """
        prompt = self._prompt(prompt_name)
        texts = [prompt + one for one in inputs if isinstance(one, str)]
        encodings = iter(self._encode(texts, truncate=truncate))
        left_out = 0 if self._files.pools_prompt else self._length_of(prompt)
        return [
            self._input(next(encodings), left_out)
            if isinstance(one, str)
            else self._given(one, truncate=truncate)
            for one in inputs
        ]

    def tokenize_pairs(
        self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False
    ) -> list[EncodedInput]:
        """Raises: InvalidParameter, PromptTooLong"""
        return [self._input(one, 0) for one in self._encode(pairs, truncate=truncate)]

    def _prompt(self, name: str | None) -> str:
        """Raises: InvalidParameter"""
        name = self._files.default_prompt if name is None else name
        if not name:
            return ""
        if name not in self._files.prompts:
            known = ", ".join(self._files.prompts) or "none"
            raise InvalidParameter(
                f"prompt_name: {self.name} has no prompt {name!r}, only: {known}",
                param="prompt_name",
            )
        return self._files.prompts[name]

    def _encode(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], *, truncate: bool
    ) -> list[Encoding]:
        tokenizer = self._cutting if truncate else self._tokenizer
        try:
            encodings: list[Encoding] = tokenizer.encode_batch(
                [self._cleaned(one) for one in texts]
            )
        except Exception as error:  # the tokenizers library has no other
            raise InvalidParameter(
                f"prompt: the tokenizer cannot read a text: {first_line(error)}", param="prompt"
            ) from error
        for encoding in encodings:
            self._check_length(len(encoding.ids))
        return encodings

    def _cleaned(self, text: Any) -> Any:
        """Raises: InvalidParameter"""
        if isinstance(text, tuple):
            return text
        if (where := lone_surrogate(text)) is not None:
            raise InvalidParameter(f"prompt: {where}", param="prompt")
        return text.lower() if self._files.lower_case else text

    def _check_length(self, length: int) -> None:
        if length > self.max_tokens:
            raise PromptTooLong.of(length, self.max_tokens)
        if length == 0:
            raise InvalidParameter(
                "prompt: an input is empty: it must have at least one token", param="prompt"
            )

    def _input(self, encoding: Encoding, left_out: int) -> EncodedInput:
        types = tuple(encoding.type_ids) if self._has_types and any(encoding.type_ids) else None
        return EncodedInput(tuple(encoding.ids), types, left_out)

    def _given(self, ids: Sequence[int], *, truncate: bool) -> EncodedInput:
        if not all(0 <= token_id < self.vocab_size for token_id in ids):
            raise InvalidParameter(
                f"prompt: a token id of {self.name} is from 0 to {self.vocab_size - 1}",
                param="prompt",
            )
        ids = ids[: self.max_tokens] if truncate else ids
        self._check_length(len(ids))
        return EncodedInput(tuple(ids))

    def _length_of(self, prompt: str) -> int:
        """Its tokens, with the special ones before it and without the one behind it."""
        if not prompt:
            return 0
        if prompt not in self._prompt_lengths:
            ids = self._tokenizer.encode(self._cleaned(prompt)).ids
            self._prompt_lengths[prompt] = len(ids) - (ids[-1] in self._specials)
        return self._prompt_lengths[prompt]

    # Numbers

    @torch.inference_mode()
    def encode(self, inputs: Sequence[EncodedInput]) -> Tensor:
        """A row of float32 on the CPU for each input, all of one forward pass."""
        if self._head is None:
            logits: Tensor = self._padded(inputs).logits
            return activate(self._activation, logits.float()).cpu()
        vectors = [
            pool(rows[min(one.prompt_tokens, len(rows) - 1) :].float(), one.prompt_tokens, modes)
            for modes in [self._files.pooling]
            for one, rows in zip(inputs, self._hidden_states(inputs), strict=True)
        ]
        return self._head(torch.stack(vectors)).cpu()

    def _hidden_states(self, inputs: Sequence[EncodedInput]) -> Sequence[Tensor]:
        """Of each input [tokens, width]."""
        if self._packing is not None:
            types = [one.types for one in inputs] if self._has_types else None
            return self._packing.hidden_states([one.ids for one in inputs], types)
        hidden = self._padded(inputs).last_hidden_state
        return [rows[: len(one.ids)] for one, rows in zip(inputs, hidden, strict=True)]

    def _padded(self, inputs: Sequence[EncodedInput]) -> Any:
        """What the model says of a batch that is padded on the right."""
        longest = max(len(one.ids) for one in inputs)
        shape = len(inputs), longest
        ids = torch.full(shape, self._pad)
        mask = torch.zeros(shape, dtype=torch.long)
        types = torch.zeros(shape, dtype=torch.long)
        for row, one in enumerate(inputs):
            length = len(one.ids)
            ids[row, :length] = torch.tensor(one.ids)
            mask[row, :length] = 1
            if one.types is not None:
                types[row, :length] = torch.tensor(one.types)
        arguments = {"input_ids": ids, "attention_mask": mask}
        if self._has_types:
            arguments["token_type_ids"] = types
        return self._model(**{name: value.to(self._device) for name, value in arguments.items()})

    def shortened(self, rows: Tensor, dimensions: int) -> Tensor:
        """The first numbers of each row, of length 1 where the model's vectors are (Matryoshka)."""
        if dimensions == self.width or self._head is None:
            return rows
        return cut(rows, dimensions, normalize=self._head.normalizes)


def _with_head(own: str, files: ModelFiles, max_tokens: int) -> str:
    """The fingerprint of a model, by its own and by what its vectors depend on beside it."""
    said = (files.pooling, files.pools_prompt, files.lower_case, files.activation, max_tokens)
    digest = hashlib.sha256(f"{own}\0{said}\0{sorted(files.prompts.items())}".encode())
    digest.update(str(files.default_prompt).encode())
    for part in files.head:
        digest.update(f"\0{type(part).__name__}".encode())
        if not isinstance(part, Normalize):
            for name in ("config.json", "model.safetensors"):
                digest.update((part.folder / name).read_bytes())
    return digest.hexdigest()[:16]


def _tokenizer_folder(folder: Path, files: ModelFiles) -> Path:
    """Beside the transformer, or beside modules.json."""
    own = files.transformer
    return own if any(own.glob("tokenizer*.json")) else folder


def _load_model(
    folder: Path, device: torch.device, dtype: torch.dtype | None, *, scores: bool
) -> Any:
    with locate(str(folder)) as location:
        config = load_config(location)
    check_index(str(folder))
    arguments: dict[str, Any] = {}
    if scores:
        loader: Any = AutoModelForSequenceClassification
    else:
        loader = AutoModel
        known = MODEL_MAPPING.get(type(config), None)
        known = known[0] if isinstance(known, tuple) else known
        if known is not None and "add_pooling_layer" in inspect.signature(known).parameters:
            arguments["add_pooling_layer"] = False  # of BERT's first pre-training
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with quiet():
        try:
            model, info = loader.from_pretrained(
                folder,
                config=config,
                dtype=dtype or "auto",
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
        except Exception as error:
            raise unsupported(config, first_line(error)) from error
    _check_complete(config, info, scores=scores)
    return model.to(device).eval().requires_grad_(False)


def _check_complete(config: Any, info: Mapping[str, Any], *, scores: bool) -> None:
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
        and (scores or not name.startswith(_OTHER_HEADS))
    ]
    if unread:
        raise unsupported(
            config, f"nothing reads {len(unread)} tensors of it, {unread[0]} among them"
        )


def _max_tokens(files: ModelFiles, config: Any, tokenizer: Any, asked: int | None) -> int:
    """Raises: UnsupportedModel"""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and "roberta" in config.model_type:
        positions -= (config.pad_token_id or 0) + 1  # they begin behind the padding's
    limits = [positions, asked]
    if files.max_tokens is not None:
        limits.append(files.max_tokens)
    else:
        limits.append(tokenizer.model_max_length)
    known = [int(one) for one in limits if one is not None and one > 0]
    if not known:
        return _UNKNOWN_POSITIONS
    with suppress(OverflowError):
        return min(known)
    raise UnsupportedModel("its tokenizer says how long a text may be in a number that is none")
