"""Studies of placement strategies on generated workloads."""
