"""Shared words of the recipe's error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from engines.contract import BadInputError


def unknown(
    what: str, given: object, known: Iterable[str], where: str, file: str | None = None
) -> BadInputError:
    """The error for a key that is not among ``known``: says the nearest one, and all of them."""
    return wrong(join(where, str(given)), _unknown(what, given, known), file)


def unknown_value(
    what: str, given: object, known: Iterable[str], where: str, file: str | None = None
) -> BadInputError:
    """The error for a field whose value is not among ``known``."""
    return wrong(where, _unknown(what, given, known), file)


def wrong(where: str, message: str, file: str | None = None) -> BadInputError:
    """The error for a field with a value that cannot work; ``message`` says what would."""
    return BadInputError(f"{_in(file)}{where}: {message}", file=file, field=where)


def check_keys(given: Mapping[str, Any], known: Iterable[str], where: str, file: str | None) -> None:
    """Refuse keys that the grammar does not have."""
    known = list(known)
    for key in given:
        if key not in known:
            raise unknown("key", key, known, where, file)


def join(where: str, key: str | int) -> str:
    """Path of a key or an index below ``where``: ``models[0].parameters``."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    return f"{where}.{key}" if where else key


def _unknown(what: str, given: object, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = (
        f"did you mean '{close[0]}'? (known: {', '.join(names)})" if close else f"known: {', '.join(names)}"
    )
    return f"unknown {what} '{given}'; {hint}"


def _in(file: str | None) -> str:
    return f"{file}: " if file else ""
