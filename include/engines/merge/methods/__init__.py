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

NOT_YET = (
    "arcee_fusion",
    "breadcrumbs",
    "breadcrumbs_ties",
    "della",
    "della_linear",
    "karcher",
    "model_stock",
    "multislerp",
    "nearswap",
    "nuslerp",
    "ram",
    "ramplus_tl",
    "sce",
)
"""Methods of mergekit 0.1.5 that are not here: a recipe that names one is told so."""

__all__ = ["METHODS", "NOT_YET", "Base", "Kind", "Method", "Parameter", "Scope"]
