"""The tokenizer of a checkpoint: what its tokenizer.json says, and nothing else.

transformers builds a tokenizer after its class and takes only some parts from tokenizer.json, which
gives other ids where the class is not quite the model's. So the file is loaded as it is. From
tokenizer_config.json come the names of special tokens and the chat template.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rose.errors import ModelNotFound, UnsupportedModel
from roseinfer.checkpoints.gguf import tokenizer as gguf
from roseinfer.checkpoints.gguf.encoder_tokenizer import make_tokenizer
from roseinfer.checkpoints.location import Location, locate
from roseinfer.checkpoints.safetensors_files import stored_file
from roseinfer.checkpoints.sources import resolve
from roseinfer.checkpoints.transformers_messages import first_line, quiet

# Texts that a tokenizer of bytes gives back as they are.
_TEXTS = ("Hello  world, 123!\n\tif x:", " déjà vu 漢字 😀 ")


def load_tokenizer(source: str) -> Any:
    """The fast tokenizer at `source`. Raises ModelNotFound or UnsupportedModel."""
    source = resolve(source)
    with locate(source) as location, quiet():
        try:
            tokenizer = _load(location)
        except (KeyboardInterrupt, SystemExit, UnsupportedModel):
            raise
        except BaseException as error:  # a panic of the tokenizers library is no Exception
            raise ModelNotFound(
                f"no tokenizer at {source!r}: {first_line(error)}; "
                "name one with tokenizer_name (`rose worker --tokenizer`)"
            ) from error
    if location.header is not None and not gguf.is_of_encoder(location.header):
        gguf.complete_tokenizer(Path(source), location.header, tokenizer)
    _check_reads_text(source, tokenizer)
    return tokenizer


def _load(location: Location) -> Any:
    if location.header is not None and gguf.is_of_encoder(location.header):
        return make_tokenizer(Path(location.source), location.header)
    if location.layout is not None:  # an architecture that transformers does not know
        with gguf.of_known_families():
            return PreTrainedTokenizerFast.from_pretrained(location.folder, **location.arguments)
    if location.header is not None:
        return AutoTokenizer.from_pretrained(
            location.folder, trust_remote_code=False, **location.arguments
        )
    path = stored_file(location.folder, "tokenizer.json", download=True)
    if path is None:
        return _without_tokenizer_json(location)
    whole = Tokenizer.from_file(str(path))
    whole.no_padding()  # of a batch, and of what is cut off: not of a prompt
    whole.no_truncation()
    # An empty one takes the rest of the configuration: what it would change of the file is lost.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        location.folder, tokenizer_object=Tokenizer(BPE()), split_special_tokens=False
    )
    tokenizer._tokenizer = whole
    _check_added_tokens(location.source, tokenizer, whole)
    for name, token in tokenizer.special_tokens_map.items():
        if isinstance(token, str) and whole.token_to_id(token) is None:
            setattr(tokenizer, name, None)  # no text has it, and the model never says it
    return tokenizer


def _check_added_tokens(source: str, tokenizer: Any, whole: Tokenizer) -> None:
    """Raises UnsupportedModel for tokens that tokenizer.json has not, or of another id."""
    said = tokenizer.init_kwargs.get("added_tokens_decoder") or {}
    wanted: list[tuple[str, int | None]]
    wanted = [(str(token), int(token_id)) for token_id, token in said.items()]
    extra = tokenizer.init_kwargs.get("extra_special_tokens") or []
    wanted += [(str(token), whole.token_to_id(str(token))) for token in extra]
    for token, token_id in wanted:
        if whole.token_to_id(token) is None or whole.token_to_id(token) != token_id:
            raise UnsupportedModel(
                f"the tokenizer at {source!r} contradicts itself: {token!r} has the id {token_id} "
                f"in its configuration and {whole.token_to_id(token)} in tokenizer.json: mend one"
            )


def _without_tokenizer_json(location: Location) -> Any:
    """Byte-level BPE of vocab.json and merges.txt. Other files do not say all that it takes."""
    tokenizer = AutoTokenizer.from_pretrained(location.folder, trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    files = [stored_file(location.folder, name) for name in ("vocab.json", "merges.txt")]
    if (
        None in files
        or backend is None
        or not isinstance(backend.decoder, ByteLevel)
        or any(backend.decode(backend.encode(text).ids) != text for text in _TEXTS)
    ):
        raise UnsupportedModel(
            f"the tokenizer at {location.source!r} has no tokenizer.json, and its other files do "
            "not say how it reads a text: save it once with its own library as tokenizer.json"
        )
    return tokenizer


def _check_reads_text(source: str, tokenizer: Any) -> None:
    """Some wrong values are read when a text is. Raises UnsupportedModel."""
    try:
        tokenizer.encode("Hello", verbose=False)
    except Exception as error:
        raise UnsupportedModel(
            f"the tokenizer at {source!r} reads no text ({first_line(error)}): mend tokenizer.json "
            "and tokenizer_config.json"
        ) from error
