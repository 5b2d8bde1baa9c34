"""GPUs, cores and memory over time: what is reserved for whom, and what may start without delaying it."""
