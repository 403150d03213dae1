"""`rose top`: the queue and its workers, joined from Redis and from the workers' metrics."""
