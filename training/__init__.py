"""The generator of the built-in model's texts, and its training. Not installed."""
