"""Changes to logits before a token is sampled: penalties, biases, bans and grammars."""
