"""What a checkpoint's files say of how its hidden states become vectors or scores.

sentence-transformers writes modules.json and a folder for each module. The files are read as data:
what is not known here is refused, and no code of a model is run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from rose.engine_records import Task
from rose.errors import ModelNotFound, UnsupportedModel
from roseinfer.checkpoints.gguf.encoders import DENSE, RANK
from roseinfer.checkpoints.gguf.header import ANSWER_ROWS, ENCODERS, read_header
from roseinfer.checkpoints.safetensors_files import stored_file
from roseinfer.checkpoints.sources import gguf_file, resolve
from roseinfer.checkpoints.transformers_messages import first_line

#: As earlier versions name them, in the order in which several are joined.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: By the end of their names, as modules of torch.
ACTIVATIONS = ("Identity", "Tanh", "Sigmoid", "ReLU", "GELU", "SiLU")

#: Beside the model's, in its module's folder.
_TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_UNWANTED = ["onnx/*", "openvino/*"]

#: By the number of llama.cpp's pooling, where it is no vector's.
_GGUF_TASKS: Mapping[int, Task] = {RANK: "score"}
_GGUF_MEAN = 1
_GGUF_POOLINGS = {_GGUF_MEAN: "mean", 2: "cls", 3: "lasttoken"}

#: Model types that only encode: their plain model is an encoder where no file says more.
_ENCODERS = frozenset(
    (
        *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra"),
        *("ernie", "eurobert", "gte", "modernbert", "mpnet", "new", "nomic_bert", "roberta"),
        *("xlm-roberta", "xlm-roberta-xl"),
    )
)


@dataclass(frozen=True, slots=True)
class Dense:
    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class GgufDense:
    """A tensor of a GGUF file, without a bias and an activation."""

    file: Path
    tensor: str
    in_features: int
    out_features: int


@dataclass(frozen=True, slots=True)
class LayerNorm:
    folder: Path
    dimension: int


class Normalize:
    """To length 1."""


#: Of a head.
Part = Dense | GgufDense | LayerNorm | Normalize


@dataclass(frozen=True, slots=True)
class TokenScore:
    """How likely a decoder finds a token to be the next one, as a logit."""

    yes: int | str
    """an id, or a word of the vocabulary"""
    no: int | str | None
    """whose logit is subtracted"""


@dataclass(frozen=True, slots=True)
class GgufTokenScore:
    """The rows of the output layer for two such tokens, as a tensor of a GGUF file."""

    file: Path
    tensor: str


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model and its tokenizer are, and what follows it."""

    transformer: Path
    max_tokens: int | None = None
    """of a text, special tokens included; None: as many as the model has positions"""
    lower_case: bool = False
    """texts are lowered before the tokenizer reads them"""
    pooling: tuple[str, ...] = ("mean",)
    pools_prompt: bool = True
    """The tokens of a prompt take part in the pooling."""
    head: tuple[Part, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    """the name of the one that a text begins with where nobody says another"""
    activation: str | None = None
    """of scores; None: what their number asks for"""
    dimensions: int | None = None
    """so many of the first numbers are a text's vector; None: all"""
    token_score: TokenScore | GgufTokenScore | None = None
    """of a cross-encoder without a head of its own"""
    message_layout: str | None = None
    """flat or structured: how its chat template reads messages; None: its files do not say"""
    reads_messages: bool | None = None
    """Texts are messages of its chat template; False: they are tokenized as they are, whatever its
    chat template is; None: its files do not say."""
    template_variables: Mapping[str, Any] = field(default_factory=dict)


def task_of(source: str | None) -> Task:
    """generate, embed or score: what a model is for, by its files."""
    if source is None:
        return "generate"
    if (file := gguf_file(source := resolve(source))) is not None:
        header = read_header(file)
        pooling = header.value("pooling_type")
        encodes = bool(pooling) or header.architecture in ENCODERS
        return _GGUF_TASKS.get(pooling, "embed") if encodes else "generate"
    path = stored_file(source, "config.json", download=True)
    config = _read(path) if path is not None else {}
    architecture = str(next(iter(config.get("architectures") or ()), ""))
    if architecture.endswith("ForSequenceClassification"):
        return "score"
    if (path := stored_file(source, "modules.json", download=True)) is not None:
        scores = any(_kind(module) == "LogitScore" for module in _read(path, list))
        return "score" if scores else "embed"
    if architecture.endswith(("ForMaskedLM", "ForPreTraining")):
        return "embed"
    encodes = architecture.endswith("Model") and config.get("model_type") in _ENCODERS
    return "embed" if encodes else "generate"


def read_embedder(folder: Path) -> ModelFiles:
    """Of a folder or a GGUF file. Raises: UnsupportedModel"""
    if (file := gguf_file(str(folder))) is not None:
        return _of_gguf(file)
    if not (folder / "modules.json").is_file():
        return ModelFiles(folder)
    modules = _read(folder / "modules.json", list)
    files: dict[str, Any] = {}
    head: list[Part] = []
    for number, module in enumerate(modules):
        kind = _kind(module)
        place = _within(folder, module.get("path") or "")
        if (number == 0) != (kind == "Transformer"):
            raise _unsupported_module(folder, number, module)
        match kind:
            case "Transformer":
                files |= _transformer(place, ("feature-extraction",))
            case "Pooling" if number == 1:
                files |= _pooling(_read(place / "config.json"), folder)
            case "Dense":
                head.append(_dense(place))
            case "LayerNorm":
                head.append(LayerNorm(place, int(_read(place / "config.json")["dimension"])))
            case "Normalize":
                head.append(Normalize())
            case "Dropout":
                pass
            case _:
                raise _unsupported_module(folder, number, module)
    if "pooling" not in files:
        raise _unsupported(folder, "its second module is no Pooling")
    return ModelFiles(**files, **_prompts(folder), head=tuple(head), dimensions=_dimensions(folder))


def _of_gguf(file: Path) -> ModelFiles:
    """llama.cpp brings all vectors to the length of 1."""
    header = read_header(file)
    number = header.value("pooling_type") or _GGUF_MEAN
    if number not in _GGUF_POOLINGS:
        raise _unsupported(file, f"its pooling_type is {number}")
    dense = []
    for name in DENSE:
        if (tensor := f"{name}.weight") in header.elements:
            own = [header.value(f"{name}_feat_{end}") for end in ("in", "out")]
            if not all(type(size) is int for size in own):
                raise _unsupported(file, f"it does not say the sizes of {tensor}")
            dense.append(GgufDense(file, tensor, *own))
    return ModelFiles(file, pooling=(_GGUF_POOLINGS[number],), head=(*dense, Normalize()))


def read_scorer(folder: Path) -> ModelFiles:
    """Of a cross-encoder, in a folder or a GGUF file. Raises: UnsupportedModel"""
    if (file := gguf_file(str(folder))) is not None:
        header = read_header(file)
        if header.architecture in ENCODERS:
            return ModelFiles(file)
        has_rows = ANSWER_ROWS in header.elements
        score = GgufTokenScore(file, ANSWER_ROWS) if has_rows else TokenScore("yes", "no")
        return ModelFiles(file, pooling=("lasttoken",), token_score=score)
    config = _read(folder / "config.json")
    saved = _saved(folder)
    named = (
        saved.get("activation_fn")
        or (config.get("sentence_transformers") or {}).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    files: dict[str, Any] = {"transformer": folder}
    if str(next(iter(config.get("architectures") or ()), "")).endswith("ForCausalLM"):
        files["token_score"] = TokenScore("yes", "no")
    is_cross_encoder = saved.get("model_type") == "CrossEncoder"
    if (folder / "modules.json").is_file() and (is_cross_encoder or "token_score" in files):
        files |= _scoring_modules(folder)
    if "token_score" in files:
        files["pooling"] = ("lasttoken",)
    activation = None if named is None else _activation(str(named), folder)
    return ModelFiles(**files, **_prompts(folder), activation=activation)


def _scoring_modules(folder: Path) -> dict[str, Any]:
    """Raises: UnsupportedModel"""
    files: dict[str, Any] = {}
    for number, module in enumerate(_read(folder / "modules.json", list)):
        place = _within(folder, module.get("path") or "")
        match number, _kind(module):
            case 0, "Transformer":
                files |= _transformer(place, ("sequence-classification", "text-generation"))
            case 1, "LogitScore":
                files["token_score"] = _token_score(place)
            case _:
                raise _unsupported_module(folder, number, module)
    return files


def _token_score(place: Path) -> TokenScore:
    config = _read(place / "config.json")
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    if type(yes) is not int or type(no) not in (int, type(None)):
        raise _unsupported(place, f"the tokens that it scores are {yes!r} and {no!r}")
    return TokenScore(yes, no)


def folder_of(source: str) -> Path:
    """Or a GGUF file. Raises: ModelNotFound"""
    source = resolve(source)
    if (file := gguf_file(source)) is not None:
        return file
    if Path(source).is_dir():
        return Path(source)
    try:
        folder = snapshot_download(source, allow_patterns=_WANTED, ignore_patterns=_UNWANTED)
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"no model at {source!r}: {first_line(error)}") from error
    return Path(folder)


def _transformer(place: Path, tasks: Sequence[str]) -> dict[str, Any]:
    path = next((place / name for name in _TRANSFORMER_CONFIGS if (place / name).is_file()), None)
    config = _read(path) if path is not None else {}
    if (task := config.get("transformer_task")) not in (None, *tasks):
        raise _unsupported(place, f"its transformer_task is {task!r}")
    tokenizer = config.get("processor_kwargs") or config.get("tokenizer_args") or {}
    processing = config.get("processing_kwargs") or {}
    limits = (
        *((processing.get(kind) or {}).get("max_length") for kind in ("common", "text")),
        tokenizer.get("model_max_length"),
        config.get("max_seq_length"),
    )
    most = next((one for one in limits if one is not None), None)
    message = (config.get("modality_config") or {}).get("message")
    layout = (message or {}).get("format")
    return {
        "transformer": place,
        "max_tokens": None if most is None else int(most),
        "lower_case": bool(config.get("do_lower_case")),
        "message_layout": layout if layout in ("flat", "structured") else None,
        "reads_messages": message is not None,
        "template_variables": processing.get("chat_template") or {},
    }


def _pooling(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    named = config.get("pooling_mode")
    if named is None:
        modes = [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
    else:
        modes = [named] if isinstance(named, str) else list(named)
    if not modes or not all(mode in _FLAGS.values() for mode in modes):
        raise _unsupported(folder, f"its pooling is {', '.join(map(str, modes)) or 'none'}")
    return {"pooling": tuple(modes), "pools_prompt": bool(config.get("include_prompt", True))}


def _dense(place: Path) -> Dense:
    config = _read(place / "config.json")
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            raise _unsupported(place, f"its {name} is {config[name]!r}")
    activation = _activation(str(config.get("activation_function", "Tanh")), place)
    try:
        sizes = int(config["in_features"]), int(config["out_features"])
    except (KeyError, TypeError, ValueError):
        raise _unsupported(
            place, "its config.json does not say in_features, out_features"
        ) from None
    return Dense(place, *sizes, bool(config.get("bias", True)), activation)


def _prompts(folder: Path) -> dict[str, Any]:
    config = _saved(folder)
    prompts = config.get("prompts") or {}
    default = config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not (default is None or default in prompts):
        raise _unsupported(folder, "its default_prompt_name is none of its prompts")
    return {"prompts": {str(k): str(v) for k, v in prompts.items()}, "default_prompt": default}


def _dimensions(folder: Path) -> int | None:
    most = _saved(folder).get("truncate_dim")
    if most is not None and (type(most) is not int or most < 1):
        raise _unsupported(folder, f"its truncate_dim is {most!r}")
    return most


def _saved(folder: Path) -> dict[str, Any]:
    path = folder / "config_sentence_transformers.json"
    return _read(path) if path.is_file() else {}


def _kind(module: Mapping[str, Any]) -> str:
    return str(module.get("type")).rpartition(".")[2]


def _activation(name: str, place: Path) -> str:
    activation = name.rpartition(".")[2].removesuffix("()")
    if activation not in ACTIVATIONS:
        raise _unsupported(place, f"its activation function is {name!r}")
    return activation


def _within(folder: Path, path: str) -> Path:
    place = (folder / path).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise _unsupported(folder, f"modules.json names the folder {path!r}, which is not in it")
    return folder / path


def _read(path: Path, kind: type = dict) -> Any:
    """Raises: UnsupportedModel"""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{str(path)!r} cannot be read: {first_line(error)}") from error
    members: Sequence[Any] = value if kind is list and isinstance(value, list) else ()
    if not isinstance(value, kind) or not all(isinstance(one, dict) for one in members):
        raise UnsupportedModel(f"{str(path)!r} is not what sentence-transformers writes there")
    return value


def _unsupported_module(folder: Path, number: int, module: Mapping[str, Any]) -> UnsupportedModel:
    return _unsupported(folder, f"its module {number} is of the type {module.get('type')!r}")


def _unsupported(folder: Path, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"the encoder at {str(folder)!r} cannot be loaded: {reason}")
