"""Durations and memory as people write them: ``2h``, ``30m``, ``7d``, ``90``; ``80Gi``, ``80GiB``, bytes."""

from __future__ import annotations

import math
import re

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MEMORY_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "p": 1000**5}
_BINARY_UNITS = {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4, "pi": 1024**5}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.IGNORECASE)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]i?)?b?", re.IGNORECASE)


def parse_duration(value: object) -> float:
    """Seconds from a number or from text such as ``90``, ``30m``, ``1h30m`` or ``7d``.

    Raises ValueError with the forms that are accepted; negative and non-finite values are refused.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str):
        seconds = _duration_from_text(value.strip())
    else:
        raise ValueError(f"a duration is seconds or text such as 30m, 2h, 7d, not {value!r}")
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a duration is a finite number of seconds, 0 or more, not {value!r}")
    return seconds


def _duration_from_text(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    position, total = 0, 0.0
    for part in _DURATION_PART.finditer(text):
        if text[position : part.start()].strip():
            break
        total += float(part[1]) * _DURATION_UNITS[part[2].lower()]
        position = part.end()
    if position == 0 or text[position:].strip():
        raise ValueError(f"a duration is seconds or text such as 30m, 2h, 7d, not {text!r}")
    return total


def parse_memory(value: object) -> int:
    """Bytes from a number or from text such as ``80Gi``, ``80GiB``, ``512M`` or ``1073741824``.

    Raises ValueError with the forms that are accepted.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"memory is a number of bytes, 0 or more, not {value!r}")
        if value != int(value):
            raise ValueError(f"memory is a whole number of bytes or text such as 80Gi, not {value!r}")
        return int(value)
    match = _MEMORY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"memory is bytes or text such as 80Gi, 80GiB, 512M, not {value!r}")
    unit = (match[2] or "").lower()
    size = float(match[1]) * (_BINARY_UNITS.get(unit) or _MEMORY_UNITS[unit])
    if not math.isfinite(size):
        raise ValueError(f"memory is a number of bytes that can be counted, not {value!r:.80}")
    return int(size)


def format_memory(size: int) -> str:
    """``85899345920`` as ``80Gi``; the largest binary unit that leaves a number of at least 1."""
    value = float(size)
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if value < 1024:
            return f"{value:g}{unit}" if value == int(value) else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}Pi"


def format_duration(seconds: float) -> str:
    """``5400`` as ``1h30m``; at most two units, rounded down, ``0s`` for nothing."""
    rest, parts = int(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def count_of(count: float, noun: str) -> str:
    """``1 GPU``, ``8 GPUs``, ``0.5 cores``: a number of things whose plural ends in s."""
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {noun}" if count == 1 else f"{number} {noun}s"


def is_or_are(count: float) -> str:
    """The verb behind a number of things."""
    return "is" if count == 1 else "are"
