"""Thirty kills on a real control plane with real agents, supervisors and engines; no invariant may break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = 30
KILLS_WITH_AIRFLOW = 12
Run = tuple["subprocess.CompletedProcess[str]", dict[str, Any]]


def chaos(folder: Path, *options: str) -> Run:
    """The command itself, and its report."""
    command = [
        *(sys.executable, "-m", "tests.chaos", *options),
        *("--steps", "10", "40", "--folder", str(folder / "run"), "--report", str(folder / "report.json")),
    ]
    own = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    done = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=1500, check=False
    )
    print(done.stdout, done.stderr)
    return done, json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With the API server alone, on PostgreSQL where there is one."""
    return chaos(
        tmp_path_factory.mktemp("chaos"),
        *("--kills", str(KILLS), "--kill-every", "1.5", "--outage", "12", "--freeze-every", "10"),
        *("--database", "postgres" if os.environ.get("EMEP_TEST_POSTGRES_URL") else "sqlite"),
        *("--settle", "40"),
    )


def test_every_invariant_holds_after_thirty_kills(run: Run) -> None:
    done, report = run
    assert {name: found for name, found in report["invariants"].items() if found} == {}
    assert done.returncode == 0


def test_the_run_was_a_bad_day(run: Run) -> None:
    """A run in which nothing could break would prove nothing."""
    _, report = run
    assert report["kills_total"] >= KILLS
    assert {"agent", "supervisor", "engine", "api-server"} <= report["kills"].keys()
    assert report["outages"]
    assert report["requeues"] > 0
    assert report["epochs"] > sum(report["jobs"].values())
    assert report["jobs"]["completed"] > 3
    assert report["lost_work"]["steps_done_again"] > 0
    assert sum(report["probes"].values()) > 0
    assert report["gpu_presences"] > KILLS


@pytest.mark.airflow
def test_every_invariant_holds_with_a_whole_airflow_under_it(tmp_path: Path) -> None:
    """Its four daemons and its workers are killed too, on SQLite."""
    done, report = chaos(
        tmp_path,
        *("--level", "airflow", "--database", "sqlite", "--outage", "0", "--freeze-every", "0"),
        *("--kills", str(KILLS_WITH_AIRFLOW), "--kill-every", "4", "--settle", "400"),
    )
    assert {name: found for name, found in report["invariants"].items() if found} == {}
    assert done.returncode == 0
    assert report["kills_total"] >= KILLS_WITH_AIRFLOW
    assert {"api-server", "scheduler", "triggerer"} & report["kills"].keys()
    assert report["jobs"]["completed"] > 3


def test_wrong_use_is_named() -> None:
    own = {key: value for key, value in os.environ.items() if key != "EMEP_TEST_POSTGRES_URL"}
    command = [sys.executable, "-m", "tests.chaos", "--database", "postgres"]
    done = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "EMEP_TEST_POSTGRES_URL" in done.stderr
