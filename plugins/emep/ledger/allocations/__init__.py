"""Allocations: orders to agents, heartbeats, completion, leases, logs."""
