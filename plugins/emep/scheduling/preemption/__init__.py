"""Which running jobs make room for one that cannot be placed."""
