"""A fast check of documents that knows only the keywords of our own schemas: "valid" or "cannot tell".

A full JSON Schema validator takes longer to import than an engine's process takes to start, and GPUs are idle
meanwhile. Only documents that this check does not accept are given to that validator, which words the error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ANNOTATIONS = frozenset({"$schema", "$id", "title", "description", "default"})
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def surely_valid(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether ``value`` is certainly valid; False: it is invalid, or the full validator must decide."""
    return all(_fits(key, rule, schema, value) for key, rule in schema.items() if key not in _ANNOTATIONS)


def _fits(key: str, rule: Any, schema: Mapping[str, Any], value: Any) -> bool:
    if key == "type":
        return any(_is_a(name, value) for name in ([rule] if isinstance(rule, str) else rule))
    if key in ("const", "enum"):
        # 1, 1.0 and true are equal to Python, and not all of them to JSON Schema.
        return any(type(value) is type(one) and value == one for one in ([rule] if key == "const" else rule))
    if key in ("minimum", "maximum"):
        return _is_a("number", value) and bool(value >= rule if key == "minimum" else value <= rule)
    if key == "pattern":
        return isinstance(value, str) and re.search(rule, value) is not None
    if key == "minLength":
        return isinstance(value, str) and len(value) >= rule
    if key in ("required", "properties", "additionalProperties"):
        return value is None or (isinstance(value, dict) and _fits_object(key, rule, schema, value))
    return False  # a keyword that is not known here


def _fits_object(key: str, rule: Any, schema: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    if key == "required":
        return all(name in value for name in rule)
    if key == "properties":
        return all(surely_valid(rule[name], entry) for name, entry in value.items() if name in rule)
    others = [entry for name, entry in value.items() if name not in schema.get("properties", {})]
    if isinstance(rule, bool):
        return rule or not others
    return all(surely_valid(rule, entry) for entry in others)


def _is_a(name: str, value: Any) -> bool:
    return isinstance(value, _TYPES.get(name, ())) and (name == "boolean" or not isinstance(value, bool))
