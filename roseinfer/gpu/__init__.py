"""The engine on a CUDA device: Triton kernels, device-side steps, CUDA graphs, memory."""
