"""``emep-engine run``: the supervisor of one engine run, and its engine processes."""
