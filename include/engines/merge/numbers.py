"""Numbers as people write them: ``5e-1``, ``.5``, ``1.``, ``1_000`` and ``'0.5'`` are numbers.

YAML's own readers take some of these for texts (``5e-1`` and ``1.0e30`` lack what YAML 1.1 asks of a float),
and forms and JSON put quotes around others.
"""

from __future__ import annotations

import math
import re
from typing import Any

NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?")
_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")
_PERCENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?\s*%")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


def as_number(value: Any) -> float | int | None:
    """A value, or its text, as a number; None if it is none, and infinite if it is too large for a float."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if _fits(value) else math.inf if value > 0 else -math.inf
    if not isinstance(value, str) or not NUMBER.fullmatch(value.strip()):
        return None
    text = value.strip().replace("_", "")
    whole = text.lstrip("+-").isdigit() and len(text) < 300
    return int(text) if whole else float(text)


def as_finite(value: Any) -> float | None:
    """The same as a float; None for what is no number, infinite or NaN."""
    number = as_number(value)
    return float(number) if number is not None and math.isfinite(number) else None


def as_whole(value: Any) -> int | None:
    """A whole number, also one that was written as ``12.0`` or ``'12'``; None for everything else."""
    number = as_finite(value)
    return int(number) if number is not None and number.is_integer() else None


def as_truth(value: Any) -> bool | None:
    """True or false, also as 0 and 1 or as a word of YAML's (true, yes, on; false, no, off); None else."""
    if isinstance(value, str) and value.strip().lower() in (*_TRUE, *_FALSE):
        return value.strip().lower() in _TRUE
    number = value if isinstance(value, bool) else as_number(value)
    return bool(number) if number in (0, 1) else None


def no_number(value: Any) -> str:
    """Why a value is no number, and how to write it."""
    hint = ""
    if isinstance(value, str) and _COMMA.fullmatch(value.strip()):
        hint = f"; write {value.strip().replace(',', '.')}, with a point"
    elif isinstance(value, str) and _PERCENT.fullmatch(value.strip()):
        hint = f"; write {float(value.strip().rstrip('% ')) / 100:g}"
    return f"{value!r} must be a number{hint}"


def _fits(value: int) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True
