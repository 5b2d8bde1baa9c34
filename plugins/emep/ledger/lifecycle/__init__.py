"""An allocation after its grant, up to its GPUs being free; what the next try of a task waits for."""
