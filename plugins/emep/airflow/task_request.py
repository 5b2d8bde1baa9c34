"""Reads a task's class, project, queue and runtime from its operator and its run.

This runs in the processes that create task instances. They have no task context, so templates are rendered
with the run's Params alone. A field that needs more is taken from the Param of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

POOL = "emep"
"""Airflow's pool of EMEP's tasks."""
_MARK = "job_queue"
"""The field by which an operator that asks EMEP for GPUs is recognised, whatever its class is called."""


@dataclass(frozen=True)
class Wish:
    """Fields that decide the order; empty if they are not given."""

    priority: str
    project: str
    queue: str
    runtime: str


def asks_for_gpus(task: Any) -> bool:
    """Whether the task asks EMEP for GPUs."""
    return _MARK in (getattr(task, "template_fields", None) or ())


def is_of_emep(task: Any) -> bool:
    """Whether EMEP's rules apply to this task: it asks for GPUs, or is in the pool of tasks that do."""
    return asks_for_gpus(task) or getattr(task, "pool", None) == POOL


def wish_of(task: Any, conf: Mapping[str, Any] | None) -> Wish:
    """The task's fields in a run with this conf; a run without one has the Params' defaults."""
    params = _params(task, conf)
    return Wish(
        priority=_field(task, "priority", params) or "normal",
        project=_field(task, "project", params) or "default",
        queue=_field(task, _MARK, params) or "merge",
        runtime=_field(task, "runtime", params),
    )


def _params(task: Any, conf: Mapping[str, Any] | None) -> dict[str, Any]:
    own = getattr(task, "params", None) or {}
    found = {}
    for name in own:
        try:
            found[name] = own[name]
        except Exception:  # noqa: S112  # a Param without a default, or one whose default is not valid
            continue
    return {**found, **(conf if isinstance(conf, Mapping) else {})}


def _field(task: Any, name: str, params: Mapping[str, Any]) -> str:
    mapped = getattr(task, "is_mapped", False)
    value = task.partial_kwargs.get(name) if mapped else getattr(task, name, None)
    if isinstance(value, str) and "{" in value:
        value = _render(value, params)
    if value in (None, ""):
        value = params.get(name)
    return value.strip() if isinstance(value, str) else ""


def _render(template: str, params: Mapping[str, Any]) -> str | None:
    try:
        return str(_compiled(template).render(params=params))
    except Exception:  # it needs a task's context
        return None


@lru_cache(maxsize=1024)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


@cache
def _environment() -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(undefined=StrictUndefined)
