"""The blocking form, generated from the asyncio one by producer/generate_blocking.py."""
