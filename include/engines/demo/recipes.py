"""Recipes over the demo's models, as YAML texts with absolute paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

PARENTS = ("expert-upright", "expert-turned", "mislabelled")
"""The models to merge; the last one is harmful: it was trained on shuffled labels."""
BASE = "base"


def recipes(folder: Path) -> dict[str, dict[str, Any]]:
    """Name -> recipe. ``evolve`` has one weight per parent to search; the others are plain."""
    search = {"search": [-0.5, 1.0], "start": 0.3}
    return {
        "task_arithmetic": _recipe(folder, "task_arithmetic", dict.fromkeys(PARENTS[:2], 0.4)),
        "dare_ties": _recipe(folder, "dare_ties", dict.fromkeys(PARENTS[:2], 0.5), each={"density": 0.8}),
        "evolve": _recipe(folder, "task_arithmetic", dict.fromkeys(PARENTS, search)),
    }


def to_yaml(recipe: Mapping[str, Any]) -> str:
    """The recipe's text, keys in their order."""
    return yaml.dump(dict(recipe), Dumper=_Plain, sort_keys=False, default_flow_style=None, width=110)


class _Plain(yaml.SafeDumper):
    """No anchors and aliases: every value is written where it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _recipe(
    folder: Path, method: str, weights: Mapping[str, Any], each: Mapping[str, float] | None = None
) -> dict[str, Any]:
    return {
        "merge_method": method,
        "base_model": str(folder / BASE),
        "models": [
            {"model": str(folder / name), "parameters": {"weight": weight, **(each or {})}}
            for name, weight in weights.items()
        ],
        "dtype": "float32",
    }
