"""EMEP engines."""
