"""The paged KV cache: blocks, who owns them, and the tensors they lie in."""
