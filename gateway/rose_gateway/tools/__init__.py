"""Functions that a model may call, and the calls in its output."""
