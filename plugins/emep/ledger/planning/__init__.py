"""Planning cycles: snapshot, plan, and its decisions applied in one transaction."""
