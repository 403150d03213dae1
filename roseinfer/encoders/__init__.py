"""Models that turn texts into vectors, or pairs of texts into scores, by transformers' own code."""
