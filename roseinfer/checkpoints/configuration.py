"""A model's configuration, read and checked before anything is built from it."""

from pathlib import Path
from typing import Any

import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from rose.errors import ModelNotFound, UnsupportedModel
from roseinfer.checkpoints.gguf import checkpoint as gguf
from roseinfer.checkpoints.location import Location
from roseinfer.checkpoints.transformers_messages import first_line, quiet, unsupported

#: More than any model has. transformers makes as many modules as a configuration says before it
#: looks for weights, and a billion of them take all memory.
_MAX_LAYERS = 4096


#: Language models that transformers has and does not offer as such.
_NOT_OFFERED = {"mistral4": "Mistral4ForCausalLM"}

#: How checkpoints that also see name their language model, and what it is called by itself.
TEXT_PART = {
    r"^language_model\.lm_head\.": "lm_head.",
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
}


def text_part(config: Any) -> Any | None:
    """The configuration of the language model in one that also sees, where that is a family of its
    own and transformers has no way to read it out of the other. None: read it as it is."""
    text = config.get_text_config(decoder=True)
    if text.model_type in _NOT_OFFERED:
        model_type = getattr(transformers, _NOT_OFFERED[text.model_type])
        AutoModelForCausalLM.register(type(text), model_type, exist_ok=True)
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    for name in ("dtype", "quantization_config"):
        if getattr(text, name, None) is None and getattr(config, name, None) is not None:
            setattr(text, name, getattr(config, name))
    if getattr(config, "tie_word_embeddings", False):  # a head that is stored stays one
        text.tie_word_embeddings = True
    return text


def load_config(location: Location) -> Any:
    source, folder = location.source, Path(location.folder)
    if location.header is None and folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"no model in the folder {source!r}: it has no config.json{_instead(folder)}"
        )
    if location.header is not None and location.layout is not None:
        return gguf.config_of_layout(location.header, location.layout)
    with quiet():
        try:
            config = AutoConfig.from_pretrained(
                location.folder, trust_remote_code=False, **location.arguments
            )
        except OSError as error:
            raise ModelNotFound(f"no model at {source!r}: {first_line(error)}") from error
        except Exception as error:
            raise UnsupportedModel(
                f"the configuration at {source!r} cannot be read: {first_line(error)}"
            ) from error
    if location.header is not None:
        gguf.complete_config(location.header, config)
        gguf.check_config(location.header, config)
    if (file := getattr(config, "transformers_weights", None)) is not None:
        raise unsupported(
            config,
            f"its config.json says that its weights are in {file!r} (transformers_weights): name "
            "that file model.safetensors",
        )
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if isinstance(layers, int) and layers > _MAX_LAYERS:
        raise unsupported(config, f"its config.json says that it has {layers:,} layers")
    return config


def _instead(folder: Path) -> str:
    """What to name where a folder is none with a model's configuration, as far as one can see."""
    if files := sorted(folder.glob("*.gguf")):
        return f"; name a GGUF file itself: {str(files[0])!r}"
    if (folder / "adapter_config.json").is_file():
        return "; it is a LoRA adapter: name the model that it is for"
    return ""
