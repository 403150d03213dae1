"""Runners of other queues. Each is started in an environment where its queue is installed."""
