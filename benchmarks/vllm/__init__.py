"""vLLM behind the queue, beside vLLM alone."""
