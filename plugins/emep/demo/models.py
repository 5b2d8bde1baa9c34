"""The demo's models and the conf of its run; a program of the engines makes them, never imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emep.demo.processes import DemoError

SKILLS = ("upright", "turned")
FULL = {"generations": 6, "population": 24, "batch": 20}
SMALL = {"generations": 2, "population": 8, "batch": 8}
"""Generations, candidates of each, and candidates of one allocation: two at a time, as on two cores."""


def command(python: str, folder: Path, small: bool) -> list[str]:
    """The program that trains the models and writes tasks and recipe; it keeps what is there and whole."""
    return [python, "-m", "engines.demo.models", str(folder), *(["--small"] if small else [])]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Its environment: the demo's without Airflow's secrets."""
    return {key: value for key, value in env.items() if not key.startswith(("AIRFLOW", "EMEP"))}


def conf(folder: Path, small: bool) -> dict[str, Any]:
    """The run's conf, with paths below the Variable ``emep_data``. Raises DemoError if models are missing."""
    for path in ("manifest.json", "recipes/evolve.yaml"):
        if not (folder / path).is_file():
            raise DemoError(f"{folder / path} is missing: remove {folder} and start the demo again")
    return {
        "recipe": "recipes/evolve.yaml",
        "tasks": [f"tasks/{skill}_search.jsonl" for skill in SKILLS],
        "report_tasks": [f"tasks/{skill}_report.jsonl" for skill in SKILLS],
        "project": "demo",
        "seed": 1,
        **(SMALL if small else FULL),
    }
