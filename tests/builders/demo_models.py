"""The demo's small models, trained once for all tests of a run."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from tests.builders.shared_folder import shared_folder

from engines.demo.models import DemoFiles, prepare


def small_models_folder() -> Path:
    """Where the run keeps the small models; the first ``prepare`` trains them, the others find them."""
    return shared_folder() / "small-models"


@cache
def small_demo() -> DemoFiles:
    """Models, tasks and recipes of ``prepare(small=True)``, to read and not to change."""
    return prepare(small_models_folder(), small=True)


def copy_small_models(target: Path) -> None:
    """A copy to work with, whose recipes name its own models."""
    made = small_models_folder()
    shutil.copytree(made, target, dirs_exist_ok=True)
    for recipe in (target / "recipes").iterdir():
        recipe.write_text(recipe.read_text().replace(str(made), str(target)))
