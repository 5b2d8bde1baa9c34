"""The merge methods by the names that recipes use. Importing this imports no torch."""

from __future__ import annotations

from engines.merge.methods import dare, linear, passthrough, slerp, task_arithmetic, ties
from engines.merge.methods.registry import Base, Kind, Method, Parameter, Scope

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        linear.METHOD,
        slerp.METHOD,
        task_arithmetic.METHOD,
        ties.METHOD,
        dare.LINEAR,
        dare.TIES,
        passthrough.METHOD,
    )
}

__all__ = ["METHODS", "Base", "Kind", "Method", "Parameter", "Scope"]
