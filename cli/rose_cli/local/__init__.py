"""A local stack: a redis-server, workers and gateways as children of one process."""
