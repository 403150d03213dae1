"""The models that the queues serve, and their vocabularies."""
