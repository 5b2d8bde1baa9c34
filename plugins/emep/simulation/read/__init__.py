"""Readers of clusters, workloads, failures and published traces."""
