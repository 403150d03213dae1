"""The asyncio form, from which the blocking one is generated."""
