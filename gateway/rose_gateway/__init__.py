"""The HTTP gateway: OpenAI's API over the queue. Every fact is in Redis, none in a gateway."""
