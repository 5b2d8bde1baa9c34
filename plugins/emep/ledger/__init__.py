"""EMEP."""
