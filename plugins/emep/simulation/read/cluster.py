"""Reading ``CLUSTER.yaml``: nodes by kind and count, with their NVLink groups, racks and blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from emep.scheduling.model import Gpu, Node
from emep.simulation.read.errors import InputError, nearest, read_text
from emep.wire.units import parse_memory

KEYS = (
    "name", "count", "gpus", "gpu_type", "gpu_memory", "nvlink", "rack", "rack_size", "block", "block_size",
    "labels", "cpu", "memory", "network_bandwidth_gbps", "pool",
)  # fmt: skip
_FORBIDDEN_IN_NAMES = frozenset(':;, "\\')


@dataclass(frozen=True, slots=True)
class _Entry:
    """One item under ``nodes``: its values, and the line of each key, for errors."""

    file: str
    index: int
    line: int
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise InputError about a key of this entry."""
        raise InputError(self.file, self.lines.get(key, self.line), f"nodes[{self.index}].{key}", problem)

    def text(self, key: str, default: str = "") -> str:
        """A name or label; numbers are taken as text, mappings and lists are refused."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).strip():
            self.refuse(key, f"expected text, not {value!r}")
        return str(value).strip()

    def integer(self, key: str, default: int, minimum: int) -> int:
        """A whole number."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.refuse(key, f"expected a whole number, {minimum} or more, not {value!r}")
        return value

    def number(self, key: str) -> float:
        """A finite number, 0 or more; 0 where it is left out."""
        value = self.values.get(key)
        if value is None:
            return 0.0
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or value < 0
        ):
            self.refuse(key, f"expected a finite number, 0 or more, not {value!r}")
        return float(value)

    def memory(self, key: str) -> int:
        """Bytes from a number or text such as 80Gi; 0 where it is left out."""
        value = self.values.get(key)
        if value is None:
            return 0
        try:
            return parse_memory(value)
        except ValueError as problem:
            self.refuse(key, f"expected a memory size: {problem}")


def read_cluster(path: str | Path) -> tuple[Node, ...]:
    """All nodes, in the file's order; raises InputError naming file, line and key."""
    nodes: list[Node] = []
    owners: dict[str, int] = {}
    for entry in _entries(path):
        for node in _nodes(entry):
            if node.name in owners:
                entry.refuse("name", f"node {node.name!r} is already one of nodes[{owners[node.name]}]")
            owners[node.name] = entry.index
            nodes.append(node)
    return tuple(nodes)


def _entries(path: str | Path) -> list[_Entry]:
    text = read_text(path)
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        words = getattr(problem, "problem", None) or "unreadable"
        raise InputError(
            path, None if mark is None else mark.line + 1, "", f"is not YAML ({words})"
        ) from problem
    except RecursionError:
        raise InputError(path, None, "", "is nested too deeply") from None
    except ValueError as problem:  # a date or number that cannot be
        raise InputError(path, None, "", f"is not YAML ({problem})") from problem
    if not isinstance(document, dict) or not isinstance(tree, yaml.MappingNode):
        raise InputError(path, 1, "", "expected a mapping with the key nodes")
    for key in document:
        if key != "nodes":
            raise InputError(
                path,
                _key_lines(path, tree, "").get(str(key), 1),
                str(key),
                f"unknown key {key!r}: {nearest(str(key), ['nodes'])}",
            )
    listed = document.get("nodes")
    if not isinstance(listed, list) or not listed:
        raise InputError(path, 1, "nodes", "expected a list with at least one node")
    sequence = tree.value[0][1]
    return [
        _entry(str(path), index, values, node)
        for index, (values, node) in enumerate(zip(listed, sequence.value, strict=True))
    ]


def _entry(file: str, index: int, values: Any, node: yaml.Node) -> _Entry:
    line = node.start_mark.line + 1
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        raise InputError(
            file, line, f"nodes[{index}]", f"expected a mapping such as {{name: a, gpus: 8}}, not {values!r}"
        )
    lines = _key_lines(file, node, f"nodes[{index}].")
    entry = _Entry(file, index, line, values, lines)
    for key in values:
        if key not in KEYS:
            entry.refuse(str(key), f"unknown key {key!r}: {nearest(str(key), KEYS)}")
    return entry


def _key_lines(file: str | Path, node: yaml.MappingNode, prefix: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if key.value in lines:
            raise InputError(
                file, key.start_mark.line + 1, f"{prefix}{key.value}", "is given twice: keep one"
            )
        lines[str(key.value)] = key.start_mark.line + 1
    return lines


def _nodes(entry: _Entry) -> list[Node]:
    name = entry.text("name")
    if not name:
        entry.refuse("name", "is missing: every node needs a name")
    if _FORBIDDEN_IN_NAMES & set(name) or not name.isprintable():
        entry.refuse("name", f"expected a name without spaces, quotes, ':', ';' or ',', not {name!r}")
    count = entry.integer("count", 1, 1)
    size = entry.integer("gpus", 0, 0)
    labels = _labels(entry)
    racks, blocks = _numbered(entry, "rack", name, count), _numbered(entry, "block", name, count)
    nodes = []
    for number in range(count):
        node_name = name if count == 1 else f"{name}-{number}"
        groups = _nvlink_groups(entry, node_name, size)
        nodes.append(
            Node(
                name=node_name,
                gpus=tuple(
                    Gpu(index, entry.text("gpu_type"), entry.memory("gpu_memory"), groups[index])
                    for index in range(size)
                ),
                pool=entry.text("pool", "default"),
                rack=racks[number],
                block=blocks[number],
                labels=labels,
                cpu=entry.number("cpu"),
                memory=entry.memory("memory"),
                network_bandwidth_gbps=entry.number("network_bandwidth_gbps"),
            )
        )
    return nodes


def _numbered(entry: _Entry, key: str, name: str, count: int) -> Sequence[str]:
    """The rack or block of each node: one name for all, or numbered by ``rack_size``, ``block_size``."""
    size_key = f"{key}_size"
    if entry.values.get(size_key) is None:
        return [entry.text(key)] * count
    if entry.values.get(key) is not None:
        entry.refuse(size_key, f"is given beside {key}: keep one of the two")
    size = entry.integer(size_key, 1, 1)
    return [f"{name}-{key}-{number // size}" for number in range(count)]


def _nvlink_groups(entry: _Entry, node: str, size: int) -> Sequence[str | None]:
    """The NVLink group of each GPU of a node."""
    value = entry.values.get("nvlink", "node")
    if value == "node":
        return [f"{node}/nvlink"] * size
    if value is None or value == "none":
        return [None] * size
    if isinstance(value, dict) and set(value) == {"group"} and isinstance(value["group"], (str, int)):
        return [str(value["group"])] * size
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        if size % value:
            entry.refuse("nvlink", f"expected a number that divides the {size} GPUs of the node, not {value}")
        return [f"{node}/nvlink-{index // value}" for index in range(size)]
    entry.refuse("nvlink", f"expected node, none, a number of GPUs or {{group: NAME}}, not {value!r}")


def _labels(entry: _Entry) -> Mapping[str, str]:
    value = entry.values.get("labels")
    if value is None:
        return {}
    if not isinstance(value, dict):
        entry.refuse("labels", f"expected a mapping of labels to values, not {value!r}")
    for key, held in value.items():
        if isinstance(held, (dict, list)) or held is None:
            entry.refuse("labels", f"expected text for the label {key!r}, not {held!r}")
    # YAML reads true and 1 as what they are; a Kubernetes label is text, and JOBS.csv can only name text.
    return {
        str(key): str(held).lower() if isinstance(held, bool) else str(held) for key, held in value.items()
    }
