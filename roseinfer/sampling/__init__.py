"""From logits to tokens, and their log-probabilities."""
