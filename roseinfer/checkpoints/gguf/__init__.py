"""Models in one GGUF file: its header, and what transformers makes of the rest."""
