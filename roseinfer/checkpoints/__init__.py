"""Models in files: found, read and fingerprinted. `sources` and `gguf.header` do without torch."""
