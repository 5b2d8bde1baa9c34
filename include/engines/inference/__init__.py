"""Inference backends: load a causal language model and score or generate text with it."""
