"""The Lua scripts of batches."""
