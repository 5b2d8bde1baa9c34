"""Formats of form fields that report a mistake in one sentence.

Airflow checks a run's conf against the Params' JSON schemas, and answers a mistake with the schema. A format
that raises its own error is checked first, so its sentence is the whole answer. EMEP's plugin registers the
formats in the API server; elsewhere the schema's pattern applies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emep.wire.units import parse_duration, parse_memory

DURATION, WAIT, MEMORY = "emep-duration", "emep-wait", "emep-memory"
DURATION_PATTERN = r"^\s*(\d+(\.\d+)?|(\d+(\.\d+)?\s*(ms|s|m|h|d|w)\s*)+)\s*$"
"""Each number but a lone one has its unit: a pattern without that takes hours over thirty digits and an x."""
MEMORY_PATTERN = r"^\s*\d+(\.\d+)?\s*([kKmMgGtTpP][iI]?)?[bB]?\s*$"
LONGEST_TEXT = 60
"""Characters of a duration or an amount of memory."""


def _duration(value: Any) -> None:
    if parse_duration(value) <= 0:
        raise ValueError(f"a duration is longer than 0, not {value!r}")


def _checked(check: Callable[[Any], Any], example: str) -> Callable[[Any], bool]:
    def checker(value: Any) -> bool:
        from airflow.sdk.exceptions import ParamValidationError

        if value is None:
            return True
        try:
            if len(text := str(value)) > LONGEST_TEXT:
                raise ValueError(f"{text[:LONGEST_TEXT]!r}... is too long")
            check(value)
        except (ValueError, OverflowError) as error:
            raise ParamValidationError(f"{error}. Write for example {example}.") from None
        return True

    return checker


_CHECKS = {
    DURATION: _checked(_duration, "2h or 1h30m"),
    WAIT: _checked(parse_duration, "10s"),
    MEMORY: _checked(parse_memory, "40Gi"),
}


def register() -> None:
    """Make the formats known to this process's schema checks; more than once does no harm."""
    from jsonschema import FormatChecker

    for name, check in _CHECKS.items():
        # No exceptions are named: what a check raises is then not wrapped into a complaint with its schema.
        FormatChecker.checkers[name] = (check, ())
