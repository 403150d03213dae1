"""Batches: files of requests, each line answered once."""
