"""The paged KV cache: its blocks, the prefix cache over them, and their tensors."""
