"""Recipes of a run's conf: parses them, makes paths absolute, and puts numbers for searched parameters.

The engines check a recipe's grammar; this module reads only what the DAGs themselves need.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from emep.dagkit.readable import UnreadableError, read_text
from emep.dagkit.settings import absolute


def read_recipe(
    value: Any, root: str | None, project: str | None = None, user: str | None = None
) -> dict[str, Any]:
    """The recipe as a mapping, with absolute model paths.

    ``value`` is a mapping, YAML text, or the path or ``file://`` URI of a YAML file that ``user``'s jobs of
    ``project`` may read. Raises AirflowFailException with one sentence that names the recipe and the place;
    of a file that is no recipe it says no more than the name.
    """
    # Parsing a DAG imports nothing of the engines; reading a recipe does.
    from emep.yaml_text import TooDeep, YamlFault, is_yaml_text, read_yaml

    source = "recipe"
    if isinstance(value, str) and not is_yaml_text(value):
        source = absolute(value.strip(), root)
        try:
            value = read_text(source, root, project, user)
        except UnreadableError as error:
            raise AirflowFailException(f"recipe: {source} {error}.") from None
        if "merge_method" not in value:
            raise AirflowFailException(
                f"recipe: {source} is no recipe: a recipe is a mapping that begins with merge_method."
            )
    if isinstance(value, str):
        try:
            value = read_yaml(value)
        except TooDeep:
            raise AirflowFailException(f"{source}: nested too deeply for a recipe.") from None
        except YamlFault as error:
            place = f" line {error.line}" if error.line is not None else ""
            raise AirflowFailException(f"{source}{place}: this is not YAML: {error.problem}.") from None
    if source != "recipe" and isinstance(value, Mapping) and "merge_method" not in value:
        raise AirflowFailException(
            f"recipe: {source} is no recipe: a recipe is a mapping that begins with merge_method."
        )
    if not isinstance(value, Mapping):
        raise AirflowFailException(
            f"{source}: a recipe is a mapping that begins with merge_method, not {type(value).__name__}."
        )
    absolute_recipe: dict[str, Any] = _absolute_models(dict(value), root)
    return absolute_recipe


def _absolute_models(node: Any, root: str | None) -> Any:
    """A copy in which every path of a model is absolute, below ``root``.

    Models stand under ``model:`` and ``base_model:``, or under ``path:`` within one of them.
    """
    if isinstance(node, Mapping):
        return {
            key: _reference(item, root) if key in ("model", "base_model") else _absolute_models(item, root)
            for key, item in node.items()
        }
    if isinstance(node, list):
        return [_absolute_models(item, root) for item in node]
    return node


def _reference(reference: Any, root: str | None) -> Any:
    """One model reference: ``PATH[@REVISION][+LORA[@REVISION]]`` or ``{model: {path: ...}, lora: {path:
    ...}}``."""
    if isinstance(reference, str) and reference:
        return "+".join(absolute(part, root) for part in reference.split("+"))
    if isinstance(reference, Mapping):
        return {
            key: {**item, "path": absolute(item["path"], root)}
            if isinstance(item, Mapping) and isinstance(item.get("path"), str)
            else item
            for key, item in reference.items()
        }
    return reference


def model_paths(recipe: Mapping[str, Any]) -> list[str]:
    """Paths of the models that a recipe names, the base first, each once, without revisions and adapters."""
    base, others = recipe.get("base_model"), _model_references(recipe)
    paths = [_path(reference) for reference in [base, *others] if reference]
    return list(dict.fromkeys(path for path in paths if path))


def _model_references(node: Any) -> Iterator[Any]:
    if isinstance(node, Mapping):
        for key, item in node.items():
            if key == "model":
                yield item
            else:
                yield from _model_references(item)
    elif isinstance(node, list):
        for item in node:
            yield from _model_references(item)


def _path(reference: Any) -> str:
    if isinstance(reference, Mapping):
        inner = reference.get("model")
        return str(inner.get("path", "")) if isinstance(inner, Mapping) else ""
    return str(reference).split("+")[0].split("@")[0]


def searched(recipe: Any) -> list[str]:
    """Names of the parameters that stand as ``{search: [low, high]}``, in the order of the recipe."""
    found: list[str] = []
    _replace_searched(recipe, lambda name, marker: found.append(name))
    return found


def at_start(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A plain recipe: every searched parameter at its ``start``, or in the middle of its range."""
    return _replace_searched(recipe, lambda name, marker: _start(marker))  # type: ignore[no-any-return]


def _start(marker: Mapping[str, Any]) -> Any:
    from emep.yaml_text import as_finite

    if "start" in marker:
        return marker["start"]
    bounds = marker["search"]
    numbers = [as_finite(bound) for bound in bounds] if isinstance(bounds, list) else []
    if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None:
        return (numbers[0] + numbers[1]) / 2
    raise AirflowFailException(f"recipe: search is a range of two numbers, [low, high], not {bounds!r}.")


def _replace_searched(node: Any, replace: Callable[..., Any], name: str = "") -> Any:
    if isinstance(node, Mapping):
        if "search" in node and set(node) <= {"search", "start"}:
            return replace(name, node)
        return copy.deepcopy({key: _replace_searched(item, replace, str(key)) for key, item in node.items()})
    if isinstance(node, list):
        return [_replace_searched(item, replace, name) for item in node]
    return node
