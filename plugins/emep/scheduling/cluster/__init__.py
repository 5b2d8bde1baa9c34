"""The cluster as arrays, and what runs on it."""
