"""Reading policy files: the only place of ``emep.policy`` that touches a disk."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path as FilePath

import yaml

from emep.policy.errors import Path, PolicyError
from emep.policy.model import Policy
from emep.policy.parse import parse_policy

_DEFAULT = "default.yaml"


@cache
def default_policy() -> Policy:
    """The policy that ships with EMEP: whatever a policy file leaves out is taken from here."""
    text = resources.files("emep.policy").joinpath(_DEFAULT).read_text(encoding="utf-8")
    policy = parse_policy_text(text, source=f"emep/policy/{_DEFAULT}", base=Policy())
    return replace(policy, named=frozenset())


def load_policy(path: str | FilePath) -> Policy:
    """Read a policy file over the default policy.

    Raises PolicyError with the file, the line, the path to the key and the fix; also where the file cannot be
    read.
    """
    try:
        text = FilePath(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise PolicyError(f"cannot be read ({reason}): name a readable YAML file", (), str(path)) from problem
    return parse_policy_text(text, source=str(path))


def preset_names() -> list[str]:
    """Names of the presets that ship with EMEP, for ``load_preset``."""
    folder = resources.files("emep.policy").joinpath("presets")
    if not folder.is_dir():
        return []
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_preset(name: str) -> Policy:
    """The policy of a preset that ships with EMEP; raises PolicyError naming the presets there are."""
    if name not in preset_names():
        raise PolicyError(f"no such preset: use one of {', '.join(preset_names())}", (), name)
    file = resources.files("emep.policy").joinpath("presets").joinpath(f"{name}.yaml")
    return parse_policy_text(file.read_text(encoding="utf-8"), source=f"emep/policy/presets/{name}.yaml")


def parse_policy_text(text: str, source: str = "policy", base: Policy | None = None) -> Policy:
    """Parse the YAML text of a policy file; errors carry the line of the key they name."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_repeated_keys(tree, (), source)
        mapping = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        words = getattr(problem, "problem", None) or "unreadable"
        line = None if mark is None else mark.line + 1
        raise PolicyError(f"is not YAML ({words})", (), source, line) from problem
    except PolicyError:
        raise
    except ValueError as problem:  # a date or number that cannot be
        raise PolicyError(f"is not YAML ({problem})", (), source) from problem
    except RecursionError:
        raise PolicyError("refers to itself by an alias: write the values out", (), source) from None
    try:
        return parse_policy(mapping, source=source, base=base)
    except PolicyError as problem:
        raise PolicyError(problem.problem, problem.parts, source, _line_of(tree, problem.parts)) from None


def _refuse_repeated_keys(node: yaml.Node | None, path: Path, source: str) -> None:
    """Refuse a key that is given twice: YAML would silently drop the first, and half a policy with it."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise PolicyError(
                    "is given twice: keep one", (*path, key.value), source, key.start_mark.line + 1
                )
            seen.add(key.value)
            _refuse_repeated_keys(value, (*path, str(key.value)), source)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _refuse_repeated_keys(value, (*path, index), source)


def _line_of(node: yaml.Node | None, path: Path) -> int | None:
    """Line of the deepest part of ``path`` that the file holds; None where it holds none of it."""
    line: int | None = None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line
