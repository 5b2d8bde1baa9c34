"""The benchmark engine: evaluates several models on the same tasks and writes a scoreboard."""
