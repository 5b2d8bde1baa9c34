"""Checks the paths that a SPEC names, each with its field, before the engine opens any of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engines.confinement.process import check_write, current
from engines.contract import BadInputError, Spec

WRITTEN = ("input.run_uri",)
"""Fields of inputs that the engine writes to."""


def check_named_paths(spec: Spec) -> None:
    """Check the paths that a SPEC names against this process's confines; do nothing without confines.

    Raises OutsideError that names the field. Paths in a recipe are checked when the recipe is read.
    """
    if current() is None:
        return
    from engines.artifacts import uri_to_path

    check_write(_path(spec.output_uri, "output_uri"), "output_uri")
    for field, text in named_paths(spec.input, "input"):
        if field in WRITTEN:
            check_write(_path(text, field), field)
            continue
        try:
            uri_to_path(text)
        except BadInputError as error:
            raise BadInputError(
                f"{field}: {error.message}", code=error.code, file=error.file, field=field
            ) from error


def _path(text: str, field: str) -> Any:
    from engines.artifacts.folder import local_path

    try:
        return local_path(text)
    except BadInputError as error:
        raise BadInputError(
            f"{field}: {error.message}", code=error.code, file=error.file, field=field
        ) from error


def named_paths(node: Any, field: str) -> Iterator[tuple[str, str]]:
    """Each absolute path or ``file:`` URI inside an input, with its field."""
    waiting = [(field, node)]
    while waiting:
        field, node = waiting.pop()
        if isinstance(node, str):
            text = node.strip()
            if "\n" not in text and (text.startswith("/") or text[:5].lower() == "file:"):
                yield field, text
        elif isinstance(node, Mapping):
            waiting.extend((f"{field}.{key}", item) for key, item in node.items())
        elif isinstance(node, list | tuple):
            waiting.extend((f"{field}[{index}]", item) for index, item in enumerate(node))
