"""The queue against a plain asyncio loop and other queues: `python -m benchmarks.queue`."""
