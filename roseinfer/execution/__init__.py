"""One model at work: which runner computes its steps, and how large its KV cache is."""
