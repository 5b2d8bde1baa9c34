"""The evaluation engine: scores a model on local tasks, and compares two evaluations."""
