"""How the inputs of a checkpoint's model become tokens, by its files and its configuration."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.gguf.header import read_header
from roseinfer.checkpoints.gguf.tokenizer import add_ends, is_of_encoder
from roseinfer.checkpoints.sources import gguf_file
from roseinfer.checkpoints.tokenizer import load_tokenizer
from roseinfer.checkpoints.transformers_messages import first_line, quiet
from roseinfer.encoders import input_format
from roseinfer.encoders.input_format import InputFormat
from roseinfer.encoders.model_files import ModelFiles
from roseinfer.encoders.tokens import InputRules

log = logging.getLogger(__name__)

#: Where a model does not say how many positions it has.
_UNKNOWN_POSITIONS = 8192


@dataclass(frozen=True, slots=True)
class ReadInputs:
    tokenizer: Any
    """of transformers"""
    source: str
    """of the tokenizer"""
    rules: InputRules


def read_inputs(
    name: str,
    folder: Path,
    files: ModelFiles,
    config: Any,
    *,
    scores: bool,
    tokenizer: str | None,
    max_tokens: int | None,
) -> ReadInputs:
    """Of the model called `name` in `folder`, whose transformer has this configuration.
    `tokenizer`: another one's folder or name. Raises: ModelNotFound, UnsupportedModel"""
    source = tokenizer or str(_tokenizer_folder(folder, files))
    loaded = load_tokenizer(source)
    if (file := gguf_file(source)) is not None and not is_of_encoder(header := read_header(file)):
        add_ends(header, loaded)
    has_types = getattr(config, "type_vocab_size", 0) > 1 and _gives_types(source, config, loaded)
    rules = InputRules(
        model=name,
        tokenizer=loaded.backend_tokenizer.to_str(),
        max_tokens=_max_tokens(files, config, loaded, max_tokens),
        vocab_size=int(config.get_text_config().vocab_size),
        lower_case=files.lower_case,
        prompts=dict(files.prompts),
        default_prompt=files.default_prompt,
        pools_prompt=files.pools_prompt,
        has_types=has_types,
        special_ids=tuple(loaded.all_special_ids),
        cuts_beginning=loaded.truncation_side == "left",
        pair_format=_pair_format(files, loaded, config) if scores else (),
        text_formats={} if scores else _text_formats(files, loaded),
    )
    return ReadInputs(loaded, source, rules)


def _tokenizer_folder(folder: Path, files: ModelFiles) -> Path:
    """Beside the transformer, or beside modules.json."""
    own = files.transformer
    return own if any(own.glob("tokenizer*.json")) else folder


def _gives_types(source: str, config: Any, tokenizer: Any) -> bool:
    """Whether transformers tells the model of which text of a pair a token is. Its tokenizer's
    class says so, and of some what the types are: then `tokenizer` learns it, whose tokenizer.json
    may say another thing. A GGUF file's model is told none, as llama.cpp has it."""
    if gguf_file(source) is not None:
        return False
    try:
        with quiet():
            usual = AutoTokenizer.from_pretrained(source, config=config, trust_remote_code=False)
        theirs = usual.backend_tokenizer.encode("a", "b")
    except Exception as error:  # noqa: BLE001 - whatever the class makes of the files
        log.info("token types are those of tokenizer.json: %s", first_line(error))
        return True
    own = tokenizer.backend_tokenizer.encode("a", "b")
    if own.ids == theirs.ids and own.type_ids != theirs.type_ids:
        tokenizer.backend_tokenizer.post_processor = usual.backend_tokenizer.post_processor
    return "token_type_ids" in usual.model_input_names


def _text_formats(files: ModelFiles, tokenizer: Any) -> dict[str, InputFormat]:
    """By the prompt before a text; {} where it is tokenized as it is. Raises: UnsupportedModel"""
    if files.reads_messages is False or not (files.reads_messages or tokenizer.chat_template):
        return {}
    if not tokenizer.chat_template:
        raise UnsupportedModel(
            f"the files of {str(files.transformer)!r} say that texts are messages, and there is "
            "no chat template: add its chat_template.jinja"
        )
    layout, variables = files.message_layout, files.template_variables
    formats = {}
    for prompt in ("", *files.prompts.values()):
        written = input_format.of_template(tokenizer, input_format.TEXT, prompt, layout, variables)
        if written is None:
            raise UnsupportedModel(
                f"the chat template of {str(files.transformer)!r} has no place for a text: add a "
                "chat_template.jinja that writes the user's message, and the system's for a prompt"
            )
        formats[prompt] = written
    return formats


def _pair_format(files: ModelFiles, tokenizer: Any, config: Any) -> InputFormat:
    """() where the tokenizer joins the texts of a pair. Raises: UnsupportedModel"""
    if files.reads_messages is False:
        return ()
    instruction = files.prompts.get(files.default_prompt or "")
    written: InputFormat | None = None
    if tokenizer.chat_template:
        written = input_format.of_template(
            tokenizer,
            input_format.PAIR,
            instruction,
            files.message_layout,
            files.template_variables,
        )
    generates = files.token_score is not None
    converted = bool(tokenizer.chat_template) and config.num_labels == 1
    if written is None and config.model_type == "qwen3" and (generates or converted):
        log.info("its chat template has no query and no document: Qwen3-Reranker's is used")
        written = input_format.of_qwen3_reranker(tokenizer, instruction)
    if written is None and (generates or files.message_layout):
        raise UnsupportedModel(
            f"the chat template of {str(files.transformer)!r} has no place for a query and a "
            "document: add a chat_template.jinja that writes messages of these roles"
        )
    return written or ()


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
