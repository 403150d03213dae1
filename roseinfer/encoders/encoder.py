"""An encoder in memory: its tokenizer, transformers' model, and what follows it."""

import hashlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import MODEL_MAPPING, AutoModel, AutoModelForSequenceClassification

from rose.errors import ModelNotFound, UnsupportedModel
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
from roseinfer.encoders.tokens import EncodedInput, InputRules, InputTokenizer

log = logging.getLogger(__name__)

#: Heads that a checkpoint may have and an embedding does without.
_OTHER_HEADS = ("cls.", "lm_head.", "classifier.", "pooler.", "decoder.", "head.", "vocab_")
#: Where a model does not say how many positions it has.
_UNKNOWN_POSITIONS = 8192


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
        self.name = model_name(source)
        specials = {loaded.cls_token_id, loaded.sep_token_id, loaded.eos_token_id} - {None}
        self.tokenizer = InputTokenizer(
            InputRules(
                model=self.name,
                tokenizer=loaded.backend_tokenizer.to_str(),
                max_tokens=self.max_tokens,
                vocab_size=int(config.get_text_config().vocab_size),
                lower_case=self._files.lower_case,
                prompts=dict(self._files.prompts),
                default_prompt=self._files.default_prompt,
                pools_prompt=self._files.pools_prompt,
                has_types=self._has_types,
                special_ids=tuple(specials),
            )
        )
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

    @torch.inference_mode()
    def encode(self, inputs: Sequence[EncodedInput]) -> Tensor:
        """A row of float32 on the CPU for each input, all of one forward pass."""
        if self._head is None:
            logits: Tensor = self._padded(inputs).logits
            return activate(self._activation, logits.float()).cpu()
        modes = self._files.pooling
        vectors = [
            pool(rows[min(one.prompt_tokens, len(rows) - 1) :].float(), one.prompt_tokens, modes)
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
