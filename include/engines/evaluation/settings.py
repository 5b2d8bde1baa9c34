"""Reading an engine's input: known keys only, right types, messages that name the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from engines.contract import BadInputError
from engines.inference.backend import BackendOptions


def check_fields(
    engine: str, given: Mapping[str, Any], required: Sequence[str], optional: Sequence[str]
) -> None:
    """Refuse unknown and missing fields of an engine's input, naming the nearest valid one."""
    known = (*required, *optional)
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
            raise BadInputError(f"input.{key}: {engine} has no such field; {hint}", field=f"input.{key}")
    for key in required:
        if given.get(key) is None:
            raise BadInputError(f"input.{key}: {engine} needs it", field=f"input.{key}")


def text(given: Mapping[str, Any], key: str) -> str:
    """A field that is a text."""
    value = given.get(key)
    if not isinstance(value, str) or not value:
        raise BadInputError(f"input.{key}: {value!r} must be a text", field=f"input.{key}")
    return value


def texts(given: Mapping[str, Any], key: str) -> list[str]:
    """A field that is a list of texts, at least one."""
    value = given.get(key)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(v, str) and v for v in value):
        raise BadInputError(f"input.{key}: must be a list of at least one path or URI", field=f"input.{key}")
    return list(value)


def optional_count(given: Mapping[str, Any], key: str) -> int | None:
    """A field that is a whole number of at least 1, or not given."""
    return None if given.get(key) is None else count(given, key, 1)


def count(given: Mapping[str, Any], key: str, default: int, *, least: int = 1) -> int:
    """A field that is a whole number of at least ``least``; ``default`` where it is not given."""
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInputError(
            f"input.{key}: {value!r} must be a whole number of at least {least}", field=f"input.{key}"
        )
    return value


def fraction(given: Mapping[str, Any], key: str, default: float) -> float:
    """A field that is a number from 0 to 1; ``default`` where it is not given."""
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadInputError(f"input.{key}: {value!r} must be a number from 0 to 1", field=f"input.{key}")
    return float(value)


def check_truth(given: Mapping[str, Any], key: str) -> bool:
    """A field that is true or false; false where it is not given."""
    value = given.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadInputError(f"input.{key}: {value!r} must be true or false", field=f"input.{key}")
    return bool(value)


BACKEND_FIELDS = ("batch_size", "dtype", "bos", "backend")


def backend_options(given: Mapping[str, Any], device: str) -> BackendOptions:
    """How to compute, from an engine's input and its SPEC's device. The backend checks the names itself."""
    return BackendOptions(
        device=device,
        dtype=str(given.get("dtype") or "auto"),
        batch_size=count(given, "batch_size", BackendOptions.batch_size),
        bos=str(given.get("bos") or "auto"),
    )
