"""Merge recipes: read, checked, and with parameters to search."""
