"""Chaos for a batch: whoever runs it dies again and again."""
