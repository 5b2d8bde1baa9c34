"""Which GPUs a job gets: the contract's order of placement, searched exactly where that is affordable."""
