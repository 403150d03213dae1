"""Embedders beside their peers: `python -m benchmarks.encoders`."""
