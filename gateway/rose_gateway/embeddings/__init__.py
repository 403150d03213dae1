"""Requests whose answers are numbers: embeddings, ranks and scores."""
