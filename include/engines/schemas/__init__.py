"""JSON Schemas of the documents that cross the engines' border, and how they are checked."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from engines.contract import ENGINES, BadInputError
from engines.schemas.quick import surely_valid

NAMES = ("spec", "result", "checkpoint")


def load_schema(name: str) -> dict[str, Any]:
    """The JSON Schema called ``spec``, ``result`` or ``checkpoint``.

    The engines that a SPEC may name are those that are registered, a site's own included.
    """
    text = files("engines.schemas").joinpath(f"{name}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    if name == "spec":
        schema["properties"]["engine"]["enum"] = list(ENGINES)
    return schema


def validate(name: str, document: Any, file: str | None = None) -> None:
    """Check a document. Raises BadInputError naming file, field and what would do."""
    schema = load_schema(name)
    if surely_valid(schema, document):
        return
    from jsonschema import Draft202012Validator

    found = sorted(
        Draft202012Validator(schema).iter_errors(document), key=lambda error: list(map(str, error.path))
    )
    if not found:
        return
    error = found[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path).lstrip(".")
    place, message = _explain(error, where, schema)
    raise BadInputError(f"{file or name}: {place or 'document'}: {message}", file=file, field=place or None)


def read_document(name: str, path: Path) -> dict[str, Any]:
    """Read and check a JSON file. Raises BadInputError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror}", file=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path} is not JSON: {error}", file=str(path)) from error
    validate(name, document, str(path))
    return document  # type: ignore[no-any-return]


def _explain(error: Any, where: str, schema: dict[str, Any]) -> tuple[str, str]:
    import difflib

    def at(key: str) -> str:
        return f"{where}.{key}" if where else key

    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = sorted(error.schema.get("properties", {}))
        key = next(key for key in error.instance if key not in known)
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
        return at(key), f"unknown field '{key}'; {hint}"
    if error.validator == "required":
        key = next(key for key in error.validator_value if key not in error.instance)
        return at(key), f"is missing{_help(schema, at(key))}"
    if error.validator == "enum":
        known = [str(value) for value in error.validator_value]
        close = difflib.get_close_matches(str(error.instance), known, n=1, cutoff=0.5)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        return where, f"'{error.instance}' must be one of {', '.join(known)}{hint}"
    return where, f"{error.message}{_help(schema, where)}"


def _help(schema: dict[str, Any], where: str) -> str:
    text = schema.get("properties", {}).get(where.partition(".")[0], {}).get("description")
    return f" ({text})" if text else ""
