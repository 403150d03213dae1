"""Models in one GGUF file: its header, and what transformers or a layout of ours makes of it."""
