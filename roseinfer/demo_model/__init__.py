"""The built-in model: small enough to ship, so that the first command needs no download.

Importing this package stays free of torch and transformers, because a producer that only
enqueues prompts must be able to name the model without loading it.
"""

from pathlib import Path

MODEL_PATH: Path = Path(__file__).resolve().parent
"""The folder that holds the weights, the configuration and the tokenizer."""

__all__ = ["MODEL_PATH"]
