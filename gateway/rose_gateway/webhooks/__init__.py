"""Webhooks: who is told of the end of background responses and batches, and how."""
