"""Loads a recipe from a mapping, YAML text or a file, as plain data that is not checked yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.artifacts import uri_to_path
from engines.contract import BadInputError
from engines.merge.yaml_text import TooDeep, YamlFault, is_yaml_text, read_yaml


def load_recipe(recipe: Mapping[str, Any] | str) -> tuple[dict[str, Any], str | None]:
    """The recipe as a mapping, and the file it came from. ``recipe``: a mapping, YAML text, a path or a URI.

    Raises BadInputError where there is no such file, the text is no YAML, or it is not one mapping.
    """
    if isinstance(recipe, Mapping):
        return dict(recipe), None
    text, file = recipe, None
    if not is_yaml_text(recipe):
        file = recipe.strip()
        path = uri_to_path(file)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise BadInputError(f"cannot read the recipe {file}: {reason}", file=file) from error
        if "merge_method" not in text:
            raise _no_recipe(file)
    try:
        document = read_yaml(text)
    except TooDeep:
        raise BadInputError(f"{file or 'recipe'}: nested too deeply", file=file, field="recipe") from None
    except YamlFault as error:
        place = f"{file or 'recipe'}" if error.line is None else f"{file or 'recipe'}, line {error.line}"
        raise BadInputError(f"{place}: not valid YAML: {error.problem}", file=file, field="recipe") from error
    if not isinstance(document, dict):
        found = type(document).__name__
        message = f"{file or 'recipe'}: must be one mapping with 'merge_method', found {found}"
        raise BadInputError(message, file=file, field="recipe")
    if file is not None and "merge_method" not in document:
        raise _no_recipe(file)
    return document, file


def _no_recipe(file: str) -> BadInputError:
    """The error for a file that is no recipe; it quotes nothing of the file's content."""
    message = f"{file} is no recipe: a recipe is a mapping with 'merge_method'"
    return BadInputError(message, file=file, field="recipe")
