"""The cluster as arrays: nodes, cells and GPUs, and which jobs hold them."""
