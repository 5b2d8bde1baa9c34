"""What a job may read and write: refused at the door where that is plain, and handed to its engine
in any case."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emep.layout import checkpoint_folder, folder_of, run_folder
from emep.ledger.jobs.confinement import check_spec, confines
from emep.ledger.store.tables import Job
from emep.policy.sections import RootsPolicy
from emep.wire.errors import InvalidError

ROOTS = RootsPolicy(read=("/srv/models",), write=("/srv/shared",))
ARTIFACTS = "file:///srv/artifacts"
OWN = f"/srv/artifacts/{run_folder('team', 'alice', 'emep_merge', 'run 1')}"
ANOTHERS = f"/srv/artifacts/{run_folder('team', 'bob', 'emep_merge', 'run 1')}"
OTHER = f"/srv/artifacts/{run_folder('team', 'alice', 'emep_merge', 'run 2')}"
FOREIGN = f"/srv/artifacts/{run_folder('other', 'alice', 'emep_merge', 'run 1')}"


def judge(spec: dict[str, Any], *, run: str | None = "run 1") -> None:
    values = {
        "spec": spec,
        "project": "team",
        "user": "alice",
        "dag_id": "emep_merge" if run else None,
        "run_id": run,
    }
    check_spec(values, ARTIFACTS, ROOTS)


@pytest.mark.parametrize(
    "output",
    [
        None,
        "models",
        "a/b",
        f"{OWN}/models",
        f"file://{OWN}",
        f"file://{OWN}/a/../b",
        "/srv/shared/x",
        f"FILE://localhost{OWN}/a",
    ],
)
def test_outputs_inside_are_taken(output: str | None) -> None:
    judge({"engine": "merge", "output_uri": output})


@pytest.mark.parametrize(
    "output",
    [
        "/tmp/out",
        "file:///tmp/out",
        f"{OWN}x",
        f"{OWN}/../../x",
        f"file://{OWN}/%2e%2e/x",
        "../x",
        "a/../../x",
        OTHER,
        ANOTHERS,
        f"file://{FOREIGN}/models",
        "~/x",
        "s3://bucket/x",
        "file://elsewhere/srv/shared",
        "file:relative",
        f"{OWN}/a\0b",
        f"{OWN}/a\nb",
        f"file://{OWN}/a%0ab",
        "a\nb",
        f"{OWN}/{'n' * 300}",
        "n/" * 3000,
        "n/" * 200,
        ["list"],
    ],
)
def test_outputs_outside_are_refused_with_their_field(output: Any) -> None:
    with pytest.raises(InvalidError) as refused:
        judge({"engine": "merge", "output_uri": output, "input": {"force": True}})
    assert refused.value.field == "spec.output_uri"
    assert str(refused.value).startswith("spec.output_uri: ")


def test_a_job_without_a_run_names_no_absolute_output_of_its_own() -> None:
    judge({"engine": "merge", "output_uri": "models"}, run=None)
    with pytest.raises(InvalidError, match="the job's own folder"):
        judge({"engine": "merge", "output_uri": OWN}, run=None)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"recipe": "/etc/shadow"}, "spec.input.recipe"),
        ({"recipe": " /etc/shadow"}, "spec.input.recipe"),
        ({"recipe": "file:///srv/models/../../etc/shadow"}, "spec.input.recipe"),
        ({"recipe": {"models": [{"model": "/home/bob/m"}]}}, "spec.input.recipe.models[0].model"),
        ({"tasks": ["/srv/models/t.jsonl", "/proc/1/environ"]}, "spec.input.tasks[1]"),
        ({"model": "~root/m"}, "spec.input.model"),
        ({"baseline": f"{FOREIGN}/results.json"}, "spec.input.baseline"),
        ({"run_uri": f"{OTHER}/search"}, "spec.input.run_uri"),
    ],
)
def test_inputs_outside_are_refused_with_their_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidError) as refused:
        judge({"engine": "evaluate", "input": given})
    assert refused.value.field == field


def test_inputs_inside_are_taken() -> None:
    given = {
        "recipe": {"models": [{"model": "/srv/models/base"}, {"model": f"{OTHER}/models/m"}]},
        "tasks": ["file:///srv/models/t.jsonl"],
        "run_uri": f"file://{OWN}/search",
        "filter": "mlp",
    }
    judge({"engine": "evolve_ask", "input": given})


def test_nesting_without_end_is_judged_all_the_same() -> None:
    deep: Any = "/etc/shadow"
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(InvalidError):
        judge({"engine": "merge", "input": {"recipe": deep}})


def test_confines_come_from_the_stored_job_alone() -> None:
    job = SimpleNamespace(
        id="j1",
        project="team",
        user="alice",
        dag_id="d",
        run_id="r",
        checkpoint_key="k",
        spec={"output_uri": "/x"},
    )
    found = json.loads(confines(cast(Job, job), ROOTS))
    assert found == {
        "version": 1,
        "run": "projects/team/runs/alice/d/r",
        "project": "projects/team",
        "checkpoints": "alice/k",
        "read": ["/srv/models"],
        "write": ["/srv/shared"],
    }
    job.dag_id = job.run_id = None
    assert json.loads(confines(cast(Job, job), ROOTS))["run"] == "projects/team/jobs/j1"


def test_another_users_checkpoint_key_is_a_folder_of_the_own() -> None:
    assert checkpoint_folder("alice", "j1") != checkpoint_folder("bob", "j1")


NAMES = [
    "run", "Run", "RUN", "run ", "run/", "../run", "..", ".", "", "a/b", "a-b", "a b", "a\0b",
        "a\nb", "\uff52un", "rµn",
    "rμn", "café", "café", "x" * 64, "x" * 65, "x" * 5000, "\ud800", "run~" + "0" * 32, "con", "-rf", "~root",
]  # fmt: skip


def test_no_two_names_share_a_folder_on_any_file_system() -> None:
    folders = [folder_of(name) for name in NAMES]
    assert len(set(folders)) == len(set(NAMES))
    for folder in folders:
        assert folder == folder.lower()
        assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-~")
        assert 0 < len(folder) <= 100
        assert folder not in (".", "..")
