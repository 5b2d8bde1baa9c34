"""The YAML reader for recipes that the engines, the DAGs and the command line share.

It imports nothing of the engines but their numbers, so that the control plane can use it too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from typing import Any

import yaml

from engines.merge.numbers import NUMBER, as_number


class YamlFault(ValueError):
    """Text that cannot be read: ``problem`` in a few words, and the ``line`` (from 1) where it is known."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem if line is None else f"line {line}: {problem}")
        self.problem, self.line = problem, line


class TooDeep(YamlFault):
    """Text that nests deeper than any recipe does."""


def is_yaml_text(value: str) -> bool:
    """Whether a recipe given as a text is YAML itself, not the path or URI of a file."""
    text = value.strip()
    return "\n" in text or ": " in text or text.startswith("{")


def read_yaml(text: str) -> Any:
    """The only document of a text, as plain data.

    Raises YamlFault where it is no YAML, gives a key twice, or holds another number of documents than one.
    """
    try:
        documents = list(yaml.load_all(text, Loader=_StrictLoader))
    except RecursionError:
        raise TooDeep("nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise YamlFault(problem, mark.line + 1 if mark else None) from error
    except ValueError as error:  # a date or a number that cannot be
        raise YamlFault(" ".join(str(error).split())[:300]) from error
    if len(documents) != 1:
        raise YamlFault(f"found {len(documents)} documents, must be one")
    return documents[0]


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, but stricter about keys and numbers.

    It refuses a key given twice (the first would be dropped silently). It reads numbers as people write them:
    ``5e-1`` is a number, ``010`` is ten, ``1:30`` is text.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the class above
        first: [(tag, pattern) for tag, pattern in entries if tag not in (_INT, _FLOAT)]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


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


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float | int:
    text = str(loader.construct_scalar(node))
    number = as_number(text)
    if number is not None:
        if math.isinf(number):
            raise ValueError(f"{text[:40]} is larger than any number")
        return number
    if text.lstrip("+-")[:2].lower() in ("0x", "0o"):
        return int(text.replace("_", ""), 0)
    return float(text.lower().replace(".", "", 1))  # .inf and .nan


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _no_duplicates)
_StrictLoader.add_implicit_resolver(_FLOAT, re.compile(rf"^(?:{NUMBER.pattern})$"), list("-+.0123456789"))
_StrictLoader.add_implicit_resolver(
    _FLOAT, re.compile(r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"), list("-+.")
)
_StrictLoader.add_implicit_resolver(_INT, re.compile(r"^[-+]?0(?:x[0-9a-fA-F_]+|o[0-7_]+)$"), list("-+0"))
for _tag in (_INT, _FLOAT):
    _StrictLoader.add_constructor(_tag, _number)
