"""The service: pulls jobs from Redis into free slots, generates, publishes every token once.

asyncio talks to Redis; one thread runs the engine. A job's way through the package:

    intake -> jobs (the table) -> engine_thread -> publisher -> Redis
"""
