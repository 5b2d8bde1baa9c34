"""submit: what it sends, how it follows, and what it refuses before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Emep
from tests.client.conftest import Answer, ScriptedServer, Seen

RECIPE = "merge_method: linear\nmodels:\n  - model: a\n    parameters: {weight: 1}\n"


class Airflow:
    """Airflow's public API as far as a run's submission and its course go; every look finds it further on."""

    def __init__(self, *states: str, paused: bool = False, refuse: str | None = None) -> None:
        self.states, self.paused, self.refuse = list(states), paused, refuse
        self.triggered: list[dict[str, Any]] = []
        self.looks = 0

    def __call__(self, request: Seen) -> Answer:
        path = request.path.partition("?")[0]
        if path == "/api/v2/dags/emep_merge":
            return Answer(200, {"dag_id": "emep_merge", "is_paused": self.paused})
        if path.endswith("/taskInstances"):
            state = {"success": "success", "failed": "failed"}.get(self.states[0], "running")
            tasks = [{"task_id": "merge", "map_index": -1, "state": state, "start_date": None}]
            return Answer(200, {"task_instances": tasks, "total_entries": 1})
        if path.startswith("/emep/api/v1/jobs"):
            return Answer(200, {"items": [], "total": 0, "next": None})
        if path == "/api/v2/dags/emep_merge/dagRuns":
            self.triggered.append(json.loads(request.body))
            if self.refuse:
                return Answer(400, {"detail": self.refuse})
            return Answer(200, {"dag_run_id": "manual__1", "state": "queued"})
        if path == "/api/v2/dags/emep_merge/dagRuns/manual__1":
            self.looks += 1
            if len(self.states) > 1:
                self.states.pop(0)
            return Answer(200, {"dag_run_id": "manual__1", "state": self.states[0]})
        return Answer(404, {"detail": "not found"})


@pytest.fixture
def start() -> Iterator[Callable[[Airflow], dict[str, str]]]:
    servers: list[ScriptedServer] = []

    def serve(airflow: Airflow) -> dict[str, str]:
        servers.append(ScriptedServer(airflow))
        return {"EMEP_API_URL": servers[-1].url, "EMEP_TOKEN": "t"}

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return str(path)


def test_the_recipe_and_the_options_become_the_runs_conf(
    emep: Emep, start: Callable[[Airflow], dict[str, str]], recipe: str
) -> None:
    airflow = Airflow("queued")
    options = [
        "--gpus",
        "1",
        "--project",
        "team-a",
        "--priority",
        "high",
        "--nvlink-required",
        "--set",
        "seed=7",
    ]
    done = emep("submit", recipe, "--kind", "merge", *options, environment=start(airflow))
    assert done.returncode == 0, done.stderr
    assert airflow.triggered == [
        {
            "logical_date": None,
            "conf": {
                "recipe": RECIPE,
                "gpu_count": 1,
                "project": "team-a",
                "priority": "high",
                "nvlink_required": True,
                "seed": 7,
            },
        }
    ]
    assert "/dags/emep_merge/runs/manual__1" in done.stdout


@pytest.mark.parametrize(("last", "code"), [("success", 0), ("failed", 1)])
def test_waiting_follows_the_run_to_its_end(
    emep: Emep, start: Callable[[Airflow], dict[str, str]], recipe: str, last: str, code: int
) -> None:
    airflow = Airflow("queued", "running", last)
    done = emep("submit", recipe, "--kind", "merge", "--wait", environment=start(airflow))
    assert done.returncode == code, done.stderr
    said = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()]
    assert said == [
        "emep_merge manual__1",
        "merge: running",
        f"merge: {last}",
        f"emep_merge manual__1: {last}",
    ]


def test_fields_that_the_form_refuses_are_wrong_use(
    emep: Emep, start: Callable[[Airflow], dict[str, str]], recipe: str
) -> None:
    refusal = "Invalid input for param gpu_count: -1 is less than the minimum of 0"
    airflow = Airflow("queued", refuse=refusal)
    done = emep("submit", recipe, "--kind", "merge", "--gpus", "-1", environment=start(airflow))
    assert done.returncode == 2
    assert done.stderr == f"emep: emep_merge refuses these fields: {refusal}\n"


def test_a_paused_dag_is_not_waited_for(
    emep: Emep, start: Callable[[Airflow], dict[str, str]], recipe: str
) -> None:
    airflow = Airflow("queued", paused=True)
    done = emep("submit", recipe, "--kind", "merge", "--wait", environment=start(airflow))
    assert done.returncode == 2
    assert "emep_merge is paused" in done.stderr
    assert airflow.triggered == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--kind", "merge"], "RECIPE.yaml is missing"),
        (["missing.yaml", "--kind", "merge"], "missing.yaml: cannot be read: no such file or directory"),
        (["--kind", "evaluate"], "--model is missing"),
        (["--kind", "merge", "r.yaml", "--gpus", "4"], "--gpus: engine merge uses one GPU, and 4 were asked"),
        (
            ["--kind", "evaluate", "--model", "m", "--tasks", "t", "--gpus", "2"],
            "--gpus: engine evaluate uses one GPU, and 2 were asked for",
        ),
        (["--kind", "evaluate", "--model", "m"], "--tasks is missing"),
        (
            ["--kind", "evaluate", "--set", "model=m", "--set", "tasks=[t]", "--set", "limit"],
            "--set: 'limit' is not KEY=VALUE",
        ),
    ],
)
def test_wrong_use_is_said_before_anything_is_sent(emep: Emep, arguments: list[str], sentence: str) -> None:
    done = emep("submit", *arguments, environment={"EMEP_API_URL": "http://127.0.0.1:9", "EMEP_TOKEN": "t"})
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("merge_method: [linear\n", "line 2: not YAML"),
        ("- a\n- b\n", "a recipe is a mapping with merge_method, not list"),
        ("models: []\n", "merge_method is missing"),
        ("merge_method: 2020-99-99\n", "not YAML: month must be in 1..12"),
        ("merge_method: " + "[" * 5000, "is nested too deeply"),
    ],
)
def test_a_recipe_that_is_none_is_refused_with_its_place(
    emep: Emep, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    done = emep("submit", str(path), "--kind", "merge", environment={"EMEP_TOKEN": "t"})
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert sentence in done.stderr


def test_how_an_evaluation_is_scored_and_compared_are_fields_of_the_run() -> None:
    import argparse

    from emep.cli.commands import submit

    parser = argparse.ArgumentParser()
    submit.add_arguments(parser)
    plain = ["--kind", "evaluate", "--model", "m", "--tasks", "a.jsonl"]
    options = ["--baseline", "old.json", "--margin", "2e-2", "--dtype", "bfloat16", "--num-fewshot", "3"]
    conf = submit.read_conf(parser.parse_args([*plain, *options, "--apply-chat-template"]))
    assert conf == {
        "model": "m",
        "tasks": ["a.jsonl"],
        "baseline": "old.json",
        "margin": 0.02,
        "dtype": "bfloat16",
        "num_fewshot": 3,
        "apply_chat_template": True,
    }
    assert set(submit.read_conf(parser.parse_args(plain))) == {"model", "tasks"}
    assert submit.read_conf(parser.parse_args([*plain, "--set", "margin=5e-2"]))["margin"] == 0.05
