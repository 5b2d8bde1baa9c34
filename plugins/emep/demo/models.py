"""The demo's models and the conf of its run; a program of the engines makes them, never imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def command(python: str, folder: Path, small: bool) -> list[str]:
    """The program that trains the models and writes tasks and recipe; nothing where they are there."""
    return [python, "-m", "engines.demo.models", str(folder), *(["--small"] if small else [])]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Its environment: no network, and none of Airflow's secrets."""
    own = {key: value for key, value in env.items() if not key.startswith(("AIRFLOW", "EMEP"))}
    return {**own, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def ready(folder: Path, small: bool) -> bool:
    return False


def conf(folder: Path, small: bool) -> dict[str, Any]:
    return {}
