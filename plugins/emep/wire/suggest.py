"""The end of a sentence about an unknown word: what the writer probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(word: str, valid: Iterable[str]) -> str:
    """The nearest valid word as a question, else all valid words."""
    choices = list(valid)
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"use one of {', '.join(choices)}" if choices else "there are none"
