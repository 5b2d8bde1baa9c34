"""Reservations of GPUs, cores and memory over time, and backfill that does not delay them."""
