"""Transformers' models over a paged KV cache: their parts, attention, limits and weights."""
