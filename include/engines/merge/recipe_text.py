"""Where a recipe comes from: a mapping, YAML text, or a file; as plain data, nothing of it checked yet."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from engines.artifacts import uri_to_path
from engines.contract import BadInputError


def load_recipe(recipe: Mapping[str, Any] | str) -> tuple[dict[str, Any], str | None]:
    """The recipe as a mapping, and the file it came from. ``recipe``: a mapping, YAML text, a path or a URI.

    Raises BadInputError where there is no such file, the text is no YAML, or it is not one mapping.
    """
    if isinstance(recipe, Mapping):
        return dict(recipe), None
    text, file = recipe, None
    if not any(mark in recipe for mark in ("\n", ": ", "{")):
        file = recipe
        path = uri_to_path(recipe)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise BadInputError(f"cannot read the recipe {recipe}: {reason}", file=recipe) from error
    try:
        documents = list(yaml.load_all(text, Loader=_StrictLoader))
    except RecursionError:
        raise BadInputError(f"{file or 'recipe'}: nested too deeply", file=file, field="recipe") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that cannot be
        line = " ".join(str(error).split())
        raise BadInputError(
            f"{file or 'recipe'}: not valid YAML: {line}", file=file, field="recipe"
        ) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        found = f"{len(documents)} documents" if len(documents) != 1 else type(documents[0]).__name__
        message = f"{file or 'recipe'}: must be one mapping with 'merge_method', found {found}"
        raise BadInputError(message, file=file, field="recipe")
    return documents[0], file


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader that refuses a key given twice (the first would be dropped silently)."""


_MERGE_TAG = "tag:yaml.org,2002:merge"
"""The key ``<<``, which takes another mapping's keys over."""


def _no_duplicates(loader: yaml.SafeLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE_TAG:
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(
                None, None, "a list or a mapping cannot be a key", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key '{key}' is given twice", key_node.start_mark
            )
        seen.add(key)
    loader.flatten_mapping(node)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _no_duplicates)
