"""Nodes: registration, reports, drains, and the state of the hardware."""
