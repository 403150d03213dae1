"""The header of a GGUF file: read and checked in a fraction of a second, without torch.

A header is numbers that say how long the next thing is. Nothing of it is believed: each length is
compared with what is left of the file before it is used, so a damaged file costs no memory.

Little-endian, versions 2 and 3; a string is its length (u64) and its bytes:

    "GGUF" | version u32 | tensors u64 | pairs u64
    each pair:    key | type u32 | value
    each tensor:  name | dimensions u32 | each dimension u64 | type u32 | offset u64
    zeros up to the alignment | the tensors' data, where the offsets begin
"""

import math
import mmap
import struct
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rose.errors import ConfigurationError, ModelNotFound, UnsupportedModel
from rose.installation import how_to_install

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_START = struct.Struct("<4sIQQ")
_MAX_DIMENSIONS = 4
_MAX_KEY_BYTES = 65_535  # as the format has it

_STRING, _ARRAY = 8, 9
_NUMBERS = {
    value_type: struct.Struct(f"<{code}")
    for value_type, code in zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_U32, _U64 = _NUMBERS[4], _NUMBERS[10]

#: More than any model has layers: longer arrays of numbers are not of layers, and are not kept.
_MAX_ARRAY = 4096

#: Of these, the ones that only encode.
ENCODERS = ("bert", "nomic-bert", "gemma-embedding")

#: Of a decoder that scores: the rows of its output layer for yes and no. See roseinfer.encoders.
ANSWER_ROWS = "cls.output.weight"

#: Architectures whose layout is known here; those that transformers reads come to them.
READ_HERE = (
    *("qwen3next", "qwen35", "qwen35moe", "lfm2", "lfm2moe", "granitehybrid"),
    *("falcon-h1", "nemotron_h", "nemotron_h_moe", "mamba2", "deepseek2", "minicpm3", "gemma4"),
    *("mistral3", "hunyuan-dense", *ENCODERS),
)

#: Tensors of single precision that say how positions are embedded.
_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_F32 = 0

#: Among transformers' names: no architectures.
_NOT_READ = ("general", "tokenizer")

#: What else such a file may be, by `general.type`.
_MODEL_TYPE = "model"


@dataclass(frozen=True, slots=True)
class Header:
    """`metadata` has the numbers and strings; `counts` how many elements each array has, and
    `arrays` those of short ones of numbers."""

    architecture: str
    metadata: dict[str, Any]
    counts: dict[str, int]
    arrays: dict[str, list[Any]]
    elements: dict[str, int]
    """numbers in each tensor, by its name in the file"""
    data_start: int
    """bytes of the header"""
    factors: dict[str, list[float]] = field(default_factory=dict)
    """of the rotary embedding, by the names of their tensors"""

    def value(self, name: str) -> Any:
        """What the architecture says of itself; None if nothing."""
        return self.metadata.get(f"{self.architecture}.{name}")


def require_packages() -> None:
    """Raises: ConfigurationError: says what to install."""
    absent = [name for name in ("accelerate", "gguf") if find_spec(name) is None]
    if absent:
        raise ConfigurationError(
            f"GGUF files need {' and '.join(absent)}: {how_to_install('gguf')}"
        )


def read_header(path: Path) -> Header:
    """The header of a model that is whole, and of an architecture that transformers can read.

    Raises ModelNotFound if there is no GGUF file, UnsupportedModel if it is damaged, a part, no
    language model or of another architecture, ConfigurationError if packages are missing.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ModelNotFound(
                    f"{str(path)!r} is no GGUF file: give one, a model's folder, or its name on "
                    "the hub"
                )
            require_packages()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                header = _Reader(content).header()
    except OSError as error:
        raise ModelNotFound(f"cannot read {str(path)!r}: {error.strerror}") from error
    except _Damaged as error:
        raise UnsupportedModel(f"the GGUF file {str(path)!r} is damaged: {error}") from error
    except _Unsupported as error:
        raise UnsupportedModel(f"the GGUF file {str(path)!r} {error}") from error
    return header


class _Damaged(Exception):
    """It is not what the format says."""


class _Unsupported(Exception):
    """It is a good file of a kind that is not read here."""


@dataclass(slots=True)
class _Reader:
    content: mmap.mmap
    position: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, list[Any]] = field(default_factory=dict)

    def header(self) -> Header:
        _, version, tensors, pairs = self._numbers(_START)
        if version not in _VERSIONS:
            if version & 0xFFFF == 0:
                raise _Unsupported("is big-endian: convert it to little-endian")
            raise _Unsupported(f"has version {version} of the format: 2 and 3 can be read")
        for _ in range(pairs):
            self._key_value()
        architecture = self._architecture(tensors)
        elements: dict[str, int] = {}
        ends, factors = [], {}
        for name, count, ggml_type, offset, end in (self._tensor() for _ in range(tensors)):
            if name in elements:
                raise _Damaged(f"it has two tensors {name!r}")
            elements[name] = count
            ends.append(end)
            if name in _FACTORS and ggml_type == _F32 and count <= _MAX_ARRAY:
                factors[name] = offset
        data_start = -(-self.position // self._alignment) * self._alignment
        missing = data_start + max(ends, default=0) - len(self.content)
        if missing > 0:
            raise _Damaged(f"it ends {missing:,} bytes too early: download it again")
        return Header(
            architecture,
            self.metadata,
            self.counts,
            self.arrays,
            elements,
            data_start,
            {
                name: list(
                    struct.unpack_from(f"<{elements[name]}f", self.content, data_start + offset)
                )
                for name, offset in factors.items()
            },
        )

    def _architecture(self, tensors: int) -> str:
        """The name, after a look at what the file says it is."""
        general_type = self.metadata.get("general.type", _MODEL_TYPE)
        if general_type != _MODEL_TYPE:
            raise _Unsupported(f"is no whole model: its general.type is {general_type!r}")
        parts = self.metadata.get("split.count", 1)
        if parts != 1:
            raise _Unsupported(
                f"is one of {parts} parts: merge them into one file (gguf-split --merge)"
            )
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise _Damaged("it does not name its architecture")
        known = _architectures()
        if _plain(name) not in {_plain(other) for other in known}:
            raise _Unsupported(
                f"is of architecture {name!r}, and {', '.join(sorted(known))} are read: use the "
                "model's folder of safetensors instead"
            )
        layers = self.metadata.get(f"{name}.block_count")
        if not isinstance(layers, int) or not 0 < layers <= tensors:
            raise _Damaged(f"{name}.block_count is {layers!r}, and it has {tensors} tensors")
        return name

    @property
    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise _Damaged(f"general.alignment is {alignment!r}")
        return alignment

    def _key_value(self) -> None:
        key = self._string(_MAX_KEY_BYTES)
        if key in self.metadata or key in self.counts:
            raise _Damaged(f"it has two values of {key!r}")
        value_type = self._u32()
        if value_type == _ARRAY:
            self.counts[key] = self._array(key)
        else:
            self.metadata[key] = self._value(value_type)

    def _value(self, value_type: int) -> Any:
        if value_type == _STRING:
            return self._string()
        if value_type not in _NUMBERS:
            raise _Damaged(f"a value is of type {value_type}")
        (value,) = self._numbers(_NUMBERS[value_type])
        return value

    def _array(self, key: str) -> int:
        value_type, count = self._u32(), self._u64()
        if value_type == _STRING:
            for _ in range(count):
                self._skip(self._u64())
        elif value_type in _NUMBERS and count <= _MAX_ARRAY:
            self.arrays[key] = [self._value(value_type) for _ in range(count)]
        elif value_type in _NUMBERS:
            self._skip(count * _NUMBERS[value_type].size)
        else:
            raise _Damaged(f"an array has elements of type {value_type}")
        return count

    def _tensor(self) -> tuple[str, int, int, int, int]:
        """Name, number of elements, type, and where the data begins and ends, from `data_start`."""
        name, dimensions = self._string(_MAX_KEY_BYTES), self._u32()
        if not 0 < dimensions <= _MAX_DIMENSIONS:
            raise _Damaged(f"the tensor {name!r} has {dimensions} dimensions")
        shape = [self._u64() for _ in range(dimensions)]
        ggml_type, offset = self._u32(), self._u64()
        block, block_bytes = _block(ggml_type, name)
        if shape[0] % block or offset % self._alignment:
            raise _Damaged(f"the tensor {name!r} does not begin or end with a block")
        count = math.prod(shape)
        return name, count, ggml_type, offset, offset + count // block * block_bytes

    def _u32(self) -> int:
        (value,) = self._numbers(_U32)
        return int(value)

    def _u64(self) -> int:
        (value,) = self._numbers(_U64)
        return int(value)

    def _string(self, most: int | None = None) -> str:
        length = self._u64()
        if most is not None and length > most:
            raise _Damaged(f"a name is {length:,} bytes long")
        start = self.position
        self._skip(length)
        try:
            return self.content[start : self.position].decode()
        except UnicodeDecodeError:
            raise _Damaged(f"the text at byte {start:,} is not UTF-8") from None

    def _numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        start = self.position
        self._skip(layout.size)
        return layout.unpack_from(self.content, start)

    def _skip(self, count: int) -> None:
        if count > len(self.content) - self.position:
            raise _Damaged("it ends within its header")
        self.position += count


def _block(ggml_type: int, name: str) -> tuple[int, int]:
    """Elements and bytes of a block of this type."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        size: tuple[int, int] = GGML_QUANT_SIZES[GGMLQuantizationType(ggml_type)]
    except (ValueError, KeyError):
        raise _Unsupported(
            f"has a tensor of a type that is not known here: {name!r}, {ggml_type}"
        ) from None
    return size


def _architectures() -> list[str]:
    """The names that are read, as transformers writes those that it reads."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    names = [name for name in GGUF_CONFIG_MAPPING if name not in _NOT_READ]
    return [*names, *(name for name in READ_HERE if name not in names)]


def _plain(architecture: str) -> str:
    """qwen2moe is qwen2_moe, gpt-oss is gpt_oss."""
    return "".join(letter for letter in architecture.lower() if letter.isalnum())
