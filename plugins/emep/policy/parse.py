"""Parses a mapping (the loaded file) to a Policy; a base policy supplies the keys that it leaves out."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar
from urllib.parse import unquote

from emep.policy.checks import check_policy
from emep.policy.model import (
    CLASS_ALIASES,
    ClassRestriction,
    Policy,
    ProjectPolicy,
    QueuePolicy,
    RootsPolicy,
    UserPolicy,
)
from emep.policy.reading import Value
from emep.policy.sections import XID_ACTIONS
from emep.wire.suggest import suggest

ORDERS = ("submit_time", "shortest", "smallest_area")
OVERTAKING = ("free", "bounded")
PLACEMENTS = ("pack", "spread")
LABEL_FIELDS = (
    "gpu_type", "gpu_memory", "gpu_count", "nvlink_group_id", "rack_id", "block_id", "network_bandwidth_gbps",
)  # fmt: skip
_TOP_KEYS = [item.name for item in fields(Policy) if item.init and item.name != "named"]
_QUEUE_KEYS = [item.name for item in fields(QueuePolicy)]
_PROJECT_KEYS = [item.name for item in fields(ProjectPolicy)]

T = TypeVar("T")


def parse_policy(
    mapping: Mapping[str, Any] | None, source: str = "policy", base: Policy | None = None
) -> Policy:
    """The policy that ``mapping`` (a policy file's content) describes; what it leaves out is ``base``'s.

    ``base`` is the default policy when None. Pure. Raises PolicyError naming ``source``, the path to the key
    and what would be right.
    """
    if base is None:
        from emep.policy.load import default_policy

        base = default_policy()
    root = Value(mapping, (), source)
    found = {key: root.at(raw, key) for key, raw in root.known(_TOP_KEYS).items()}
    classes = _classes(found.get("classes"), base)
    named = frozenset(_paths(mapping or {}))
    policy = replace(base, classes=classes, named=named, **_plain_values(found, base))
    policy = replace(
        policy,
        tiers=_tiers(found.get("tiers"), base, classes),
        restricted_classes=_restrictions(found.get("restricted_classes"), base, classes),
        node_labels=_node_labels(found.get("node_labels"), base),
        queues=_queues(found.get("queues"), base, classes),
        projects=_projects(found.get("projects"), base.projects),
        gpu_billing=_table(found.get("gpu_billing"), base.gpu_billing, Value.number),
    )
    check_policy(policy, root)
    return policy


def _paths(mapping: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, f"{path}.")


def _plain_values(found: Mapping[str, Value], base: Policy) -> dict[str, Any]:
    """Single values and the sections of fixed keys."""
    readers: dict[str, Callable[[Value], Any]] = {
        "half_life": Value.duration,
        "entry_charge": Value.duration,
        "reservations": lambda value: None if value.raw == "all" else _reservations(value),
        "order": lambda value: value.choice(ORDERS),
        "starvation_bound": lambda value: value.optional(Value.duration),
        "overtaking": lambda value: value.choice(OVERTAKING),
        "preemption": lambda value: _section(value, base.preemption),
        "simulation": lambda value: _section(value, base.simulation),
        "lease": lambda value: _section(value, base.lease),
        "health": lambda value: _section(value, base.health),
        "node_checks": lambda value: _section(value, base.node_checks),
        "xids": lambda value: _xids(value, base.xids),
        "retries": lambda value: _section(value, base.retries),
        "limits": lambda value: _section(value, base.limits),
        "roots": lambda value: _roots(value, base.roots),
    }
    return {key: read(found[key]) for key, read in readers.items() if key in found}


def _reservations(value: Value) -> int:
    if isinstance(value.raw, str):
        raise value.error(f"expected a whole number or all, not {value.raw!r}: {suggest(value.raw, ['all'])}")
    return value.integer()


def _roots(value: Value, base: RootsPolicy) -> RootsPolicy:
    read = {
        key: value.at(raw, key).unique([(item, _folder(item)) for item in value.at(raw, key).elements()])
        for key, raw in value.known(("read", "write")).items()
    }
    return replace(base, **read)


def _xids(value: Value, base: Mapping[int, str]) -> dict[int, str]:
    """Xid -> action; an empty one goes back to NVIDIA's."""
    if value.raw is not None and not isinstance(value.raw, Mapping):
        raise value.error(f"expected Xid: action, as in {{94: reset}}, not {value.raw!r}")
    result = dict(base)
    for key, raw in (value.raw or {}).items():
        text, item = str(key), value.at(raw, str(key))
        if isinstance(key, bool) or not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
            raise item.error(f"an Xid is a whole number above 0, not {key!r}")
        if raw is None:
            result.pop(int(text), None)
        else:
            result[int(text)] = item.choice(XID_ACTIONS)
    return result


def _folder(value: Value) -> str:
    """An absolute path, also as a ``file://`` URI, with ``..`` taken out."""
    text = value.text()
    path = unquote(text[7:]) if text.startswith("file:///") else text
    if not path.startswith("/") or "\0" in path:
        raise value.error(f"expected the absolute path of a folder, not {text!r}")
    path = posixpath.normpath("/" + path.lstrip("/"))
    if path == "/":
        raise value.error("/ would open the whole machine to every job: name the folders that jobs share")
    return path


_COUNTS = {"failed_checks", "good_checks", "quick_failures", "max", "max_infrastructure", "pending_jobs"}
_AT_LEAST_ONE = {"failed_checks", "good_checks", "pending_jobs"}


def _section(value: Value, base: T) -> T:
    """A section with a fixed set of keys: durations, counts and switches, read by the base's own types."""
    keys = [item.name for item in fields(base)]  # type: ignore[arg-type]
    read: dict[str, Any] = {}
    for key, raw in value.known(keys).items():
        item = value.at(raw, key)
        if isinstance(getattr(base, key), bool):
            read[key] = item.boolean()
        elif key in _COUNTS:
            read[key] = item.integer(minimum=1 if key in _AT_LEAST_ONE else 0)
        else:
            read[key] = item.duration()
    return replace(base, **read)  # type: ignore[type-var]


def _table(value: Value | None, base: Mapping[str, T], read: Callable[[Value], T]) -> dict[str, T]:
    """A mapping of free keys over the base's; ``none`` (null) takes an entry of the base out."""
    result = dict(base)
    for key, item in value.items() if value is not None else ():
        if item.raw is None:
            result.pop(key, None)
        else:
            result[key] = read(item)
    return result


def _classes(value: Value | None, base: Policy) -> dict[str, float]:
    found = _table(value, base.classes, Value.number)
    for name in found:
        if name in CLASS_ALIASES and value is not None:
            raise value.at(None, name).error(
                f"{name!r} is another name of {CLASS_ALIASES[name]!r}: choose a name of its own"
            )
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _class_list(value: Value, classes: Iterable[str]) -> tuple[str, ...]:
    """Names of classes, aliases resolved, each known and listed once."""
    return value.unique([(item, _class_name(item, item.text(), classes)) for item in value.elements()])


def _class_name(where: Value, name: str, classes: Iterable[str]) -> str:
    resolved = name if name in classes else CLASS_ALIASES.get(name, name)
    if resolved not in classes:
        raise where.error(f"unknown class {name!r}: {suggest(name, classes)}")
    return resolved


def _tiers(value: Value | None, base: Policy, classes: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    """The file's tiers, not merged with the base's: a class that was moved would be in two tiers."""
    if value is None:
        kept = {tier: tuple(name for name in names if name in classes) for tier, names in base.tiers.items()}
        return kept
    return {tier: _class_list(item, classes) for tier, item in value.items()}


def _restrictions(
    value: Value | None, base: Policy, classes: Mapping[str, float]
) -> dict[str, ClassRestriction]:
    kept = {name: rule for name, rule in base.restricted_classes.items() if name in classes}
    for key, item in value.items() if value is not None else ():
        name = _class_name(item, key, classes)
        if item.raw is None:
            kept.pop(name, None)
            continue
        parts = {part: item.at(raw, part).texts() for part, raw in item.known(["dags", "roles"]).items()}
        kept[name] = ClassRestriction(**parts)
    return kept


def _node_labels(value: Value | None, base: Policy) -> dict[str, tuple[str, ...]]:
    if value is not None:
        value.known(LABEL_FIELDS)
    return _table(value, base.node_labels, Value.texts)


def _queues(value: Value | None, base: Policy, classes: Mapping[str, float]) -> dict[str, QueuePolicy]:
    result = {name: _fit_to_classes(rules, classes) for name, rules in base.queues.items()}
    for name, item in value.items() if value is not None else ():
        if item.raw is None:
            result.pop(name, None)
        else:
            start = result.get(name) or _fit_to_classes(QueuePolicy(), classes)
            result[name] = _queue(item, start, classes)
    return result


def _fit_to_classes(rules: QueuePolicy, classes: Iterable[str]) -> QueuePolicy:
    """A base's queue without the classes that the file removes; if none is left, with all of the file's."""
    kept = tuple(name for name in rules.classes if name in classes) or tuple(classes)
    return replace(rules, classes=kept, preempts=_restrict(rules.preempts, kept))


def _restrict(matrix: Mapping[str, tuple[str, ...]], classes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    kept = {
        name: tuple(victim for victim in victims if victim in classes)
        for name, victims in matrix.items()
        if name in classes
    }
    return {name: victims for name, victims in kept.items() if victims}


def _queue(value: Value, base: QueuePolicy, classes: Mapping[str, float]) -> QueuePolicy:
    found = {key: value.at(raw, key) for key, raw in value.known(_QUEUE_KEYS).items()}
    readers: dict[str, Callable[[Value], Any]] = {
        "weight": Value.number,
        "preemptible": Value.boolean,
        "yields_to_other_queues": Value.boolean,
        "pending_ttl": lambda item: item.optional(Value.duration),
        "default_max_duration": lambda item: item.optional(Value.duration),
        "pools": lambda item: None if item.raw == "all" else _not_empty(item, item.texts(), "a pool, or all"),
        "placement": lambda item: item.choice(PLACEMENTS),
        "max_gpus": lambda item: item.optional(Value.integer),
        "guaranteed_gpus": _guarantee,
    }
    read = {key: reader(found[key]) for key, reader in readers.items() if key in found}
    own = base.classes
    if "classes" in found:
        names = _not_empty(found["classes"], _class_list(found["classes"], classes), "a class")
        own = tuple(sorted(names, key=lambda name: -classes[name]))
    matrix = _restrict(base.preempts, own)
    if "preempts" in found:
        matrix = _matrix(found["preempts"], own)
    if not matrix and "preemptible" not in found:
        # Preemption "none": neither preempts nor is preempted, unless the file says otherwise.
        read["preemptible"] = False
    elif matrix and "preempts" in found and "preemptible" not in found and not base.preempts:
        read["preemptible"] = True
    return replace(base, classes=own, preempts=matrix, **read)


def _not_empty(value: Value, names: tuple[str, ...], what: str) -> tuple[str, ...]:
    if not names:
        raise value.error(f"is empty: name at least {what}")
    return names


def _matrix(value: Value, classes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    if value.raw == "none":
        return {}
    result: dict[str, tuple[str, ...]] = {}
    for key, item in value.items():
        victims = [] if item.raw in (None, "none") else item.raw
        name = _class_name(item, key, classes)
        if name in result:
            raise item.error(f"{name!r} is listed twice: name it once")
        result[name] = _class_list(item.at(victims), classes)
    return {name: victims for name, victims in result.items() if victims}


def _guarantee(value: Value) -> dict[str, int]:
    if value.raw is not None and not isinstance(value.raw, Mapping):
        raise value.error(f"expected pool: GPUs, as in {{default: 16}}, not {value.raw!r}")
    return {pool: item.integer() for pool, item in value.items()}


def _projects(value: Value | None, base: Mapping[str, ProjectPolicy]) -> dict[str, ProjectPolicy]:
    result = dict(base)
    for name, item in value.items() if value is not None else ():
        if "/" in name:
            parent, _, child = name.partition("/")
            raise item.error(
                f"a nested project stands under its parent: {parent}: {{projects: {{{child}: ...}}}}"
            )
        result[name] = _project(item, result.get(name, ProjectPolicy()))
    return result


def _project(value: Value, base: ProjectPolicy) -> ProjectPolicy:
    found = {key: value.at(raw, key) for key, raw in value.known(_PROJECT_KEYS).items()}
    readers: dict[str, Callable[[Value], Any]] = {
        "weight": Value.number,
        "max_gpus": lambda item: item.optional(Value.integer),
        "guaranteed_gpus": _guarantee,
        "members": lambda item: item.optional(Value.texts),
        "users": lambda item: {name: _user(user) for name, user in item.items()},
        "projects": lambda item: _projects(item, base.projects),
    }
    return replace(base, **{key: read(found[key]) for key, read in readers.items() if key in found})


def _user(value: Value) -> UserPolicy:
    found = value.known(["weight"])
    return (
        UserPolicy(weight=value.at(found["weight"], "weight").number()) if "weight" in found else UserPolicy()
    )
