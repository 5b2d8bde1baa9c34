"""Real runs of the supervisor and its engine under the confines of a job, as an agent starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.builders.checkpoints import save_family

from engines.confinement import landlock

RUN, OTHER_RUN, OTHER_PROJECT = "projects/a/runs/d/mine", "projects/a/runs/d/other", "projects/b/runs/d/other"
SECRET = "s3cret-of-another"
BAD_INPUT = 65


class Node:
    """One machine with artifacts, models and another's secret, and runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifacts, self.models = folder / "artifacts", folder / "models"
        self.family = save_family(self.models)
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "mine.txt").write_text(SECRET)
        for run in (OTHER_RUN, OTHER_PROJECT):
            (self.artifacts / run / "model").mkdir(parents=True)
            (self.artifacts / run / "model" / "results.json").write_text(f'{{"secret": "{SECRET}"}}')
        self.log = ""
        self.number = 0

    @property
    def own(self) -> Path:
        return self.artifacts / RUN

    def recipe(self, **changes: Any) -> dict[str, Any]:
        models = [{"model": str(self.family[name]), "parameters": {"weight": 0.5}} for name in ("one", "two")]
        return {"merge_method": "linear", "models": models, **changes}

    def start(self, spec: dict[str, Any], *, read: list[Path] | None = None, **more: str) -> dict[str, Any]:
        """Run a SPEC to its end; its Result."""
        self.number += 1
        folder = self.folder / f"run-{self.number}"
        folder.mkdir()
        (folder / "SPEC.json").write_text(json.dumps(spec))
        confines = {
            "version": 1,
            "run": RUN,
            "project": "projects/a",
            "checkpoints": "alice/key",
            "read": [str(path) for path in ([self.models] if read is None else read)],
            "write": [],
        }
        clean = {key: value for key, value in os.environ.items() if not key.startswith("EMEP_")}
        done = subprocess.run(
            [sys.executable, "-m", "engines.cli", "run", str(folder / "SPEC.json")],
            env={
                **clean,
                "OMP_NUM_THREADS": "1",
                "EMEP_CONFINES": json.dumps(confines),
                "EMEP_ARTIFACT_URI": self.artifacts.as_uri(),
                "EMEP_CHECKPOINT_URI": f"{(self.folder / 'checkpoints').as_uri()}/alice/key",
                **more,
            },
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.log = done.stdout + done.stderr
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return result

    def merge(self, recipe: Any = None, *, output: str | None = None, **given: Any) -> dict[str, Any]:
        spec: dict[str, Any] = {"engine": "merge", "device": "cpu"}
        more = {key: given.pop(key) for key in [*given] if key in ("read",) or key.startswith("EMEP_")}
        spec["input"] = {"recipe": recipe or self.recipe(), **given}
        if output is not None:
            spec["output_uri"] = output
        return self.start(spec, **more)

    def environment(self) -> dict[str, str]:
        """Of a program that may write its own run's folder and read its project's."""
        confines = {"version": 1, "run": RUN, "project": "projects/a", "checkpoints": "a/k"}
        text = json.dumps(confines | {"read": [], "write": []})
        return {**os.environ, "EMEP_CONFINES": text, "EMEP_ARTIFACT_URI": self.artifacts.as_uri()}

    def nothing_touched(self) -> bool:
        others = [self.artifacts / run / "model" for run in (OTHER_RUN, OTHER_PROJECT)]
        return (self.outside / "mine.txt").read_text() == SECRET and all(
            sorted(os.listdir(path)) == ["results.json"] and SECRET in (path / "results.json").read_text()
            for path in others
        )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(tmp_path_factory.mktemp("node").resolve())


def test_a_run_writes_its_own_folder_where_it_says_nothing_else(node: Node) -> None:
    result = node.merge(output_name="plain", EMEP_CHECKPOINT_SECONDS="0")
    assert result["status"] == "done", result
    assert (node.own / "plain" / "model.safetensors").is_file()
    assert (node.folder / "checkpoints" / "alice" / "key").is_dir()


def test_a_relative_output_starts_at_the_runs_own_folder(node: Node) -> None:
    assert node.merge(output="below/it")["status"] == "done"
    assert (node.own / "below" / "it" / "model").is_dir()


def test_what_a_run_has_written_it_replaces_by_force(node: Node) -> None:
    assert node.merge(output_name="again")["status"] == "done"
    assert node.merge(output_name="again", force=True)["status"] == "done"


@pytest.mark.parametrize(
    "output",
    [
        "{outside}",
        "file://{outside}",
        "file://{own}/../other",
        "file://{own}/%2e%2e/other",
        "../other",
        "{artifacts}/projects/b/runs/d/other",
        "{link}",
        "file://{link}/deeper",
    ],
)
def test_an_output_outside_is_refused_and_nothing_is_touched(node: Node, output: str) -> None:
    link = node.own / "link"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(node.outside)
    text = output.format(outside=node.outside, own=node.own, artifacts=node.artifacts, link=link)
    result = node.merge(output=text, force=True)
    assert result["exit_code"] == BAD_INPUT
    assert result["error"]["field"] == "output_uri"
    assert "lies outside of what this job may write" in result["error"]["message"]
    assert node.nothing_touched()


def test_an_output_that_is_a_link_to_anothers_folder_is_not_followed(node: Node) -> None:
    link = node.own / "swapped"
    link.symlink_to(node.artifacts / OTHER_PROJECT / "model")
    result = node.merge(output_name="swapped", force=True)
    assert node.nothing_touched(), result


@pytest.mark.parametrize("name", ["/etc/shadow", "file:///etc/shadow", "{outside}/mine.txt", "{link}"])
def test_a_recipe_outside_comes_back_by_its_name_alone(node: Node, name: str) -> None:
    link = node.models / "recipe.yaml"
    if not link.is_symlink():
        link.symlink_to(node.outside / "mine.txt")
    result = node.merge(name.format(outside=node.outside, link=link))
    assert result["exit_code"] == BAD_INPUT
    assert result["error"]["field"] == "input.recipe"
    assert "lies outside of what this job may read" in result["error"]["message"]
    assert SECRET not in node.log
    assert "root:" not in node.log


def test_models_that_a_recipe_names_lie_inside_too(node: Node) -> None:
    foreign = save_family(node.folder / "foreign")
    file = node.models / "foreign.yaml"
    file.write_text(
        f"merge_method: linear\nmodels:\n- model: {foreign['one']}\n  parameters: {{weight: 1}}\n"
    )
    result = node.merge(str(file))
    assert result["exit_code"] == BAD_INPUT
    assert "lies outside of what this job may read" in result["error"]["message"]


def test_a_link_inside_a_models_folder_leads_nowhere_else(node: Node) -> None:
    """Its files are opened one by one, so a folder's own place says nothing about them."""
    family = save_family(node.models / "linked")
    (node.outside / "generation_config.json").write_text(f'{{"secret": "{SECRET}"}}')
    for folder in family.values():
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "generation_config.json").symlink_to(node.outside / "generation_config.json")
    recipe = {
        "merge_method": "linear",
        "models": [{"model": str(family[name]), "parameters": {"weight": 0.5}} for name in ("one", "two")],
    }
    node.merge(recipe, output_name="from-links")
    copied = node.own / "from-links" / "generation_config.json"
    assert not copied.exists() or SECRET not in copied.read_text()
    assert SECRET not in node.log


def test_runs_of_the_own_project_are_read_and_others_are_not(node: Node) -> None:
    for run, fine in ((OTHER_RUN, True), (OTHER_PROJECT, False)):
        family = save_family(node.artifacts / run / "models")
        recipe = {
            "merge_method": "linear",
            "models": [
                {"model": str(family[name]), "parameters": {"weight": 0.5}} for name in ("one", "two")
            ],
        }
        result = node.merge(recipe, output_name="of-other")
        assert (result["status"] == "done") == fine, result


def test_a_link_that_is_swapped_between_check_and_use_gains_nothing(node: Node) -> None:
    """A recipe's name leads now to a file of the own, now to another's, as fast as it can be changed."""
    fine, swapped = node.own / "fine.yaml", node.own / "swapping.yaml"
    fine.write_text(json.dumps(node.recipe()))
    over = threading.Event()

    def swap() -> None:
        beside = node.own / "beside.yaml"
        while not over.is_set():
            for target in (fine, node.outside / "mine.txt"):
                beside.symlink_to(target)
                beside.replace(swapped)

    thread = threading.Thread(target=swap)
    swapped.symlink_to(fine)
    thread.start()
    try:
        for number in range(12):
            node.merge(str(swapped), output_name=f"swap-{number}")
            assert SECRET not in node.log
    finally:
        over.set()
        thread.join()


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_the_kernel_itself_refuses_what_no_check_has_seen(node: Node) -> None:
    program = """
import os, subprocess, sys
from pathlib import Path
from engines.confinement import Confines, confine
how = confine(Confines.from_environment(os.environ, Path.cwd()))
assert how == "landlock", how
outside, own = Path(sys.argv[1]), Path(sys.argv[2])
for act in (
    lambda: (outside / "mine.txt").read_text(),
    lambda: (outside / "mine.txt").write_text("gone"),
    lambda: (outside / "new").mkdir(),
    lambda: (outside / "mine.txt").rename(own / "moved"),
    lambda: os.link(outside / "mine.txt", own / "linked"),
    lambda: os.truncate(outside / "mine.txt", 0),
    lambda: Path("/etc/shadow").read_text(),
    lambda: Path(f"/proc/{os.getppid()}/environ").read_text(),
    lambda: subprocess.run(["cat", outside / "mine.txt"], check=True),
):
    try:
        act()
    except (OSError, subprocess.CalledProcessError):
        continue
    sys.exit("something outside was opened")
(own / "written").write_text("mine")
"""
    subprocess.run(
        [sys.executable, "-c", program, str(node.outside), str(node.own)],
        env=node.environment(),
        cwd=node.folder,
        check=True,
    )
    assert node.nothing_touched()
    assert (node.own / "written").read_text() == "mine"


def test_confines_that_cannot_be_understood_stop_the_run(node: Node) -> None:
    result = node.merge(EMEP_CONFINES="{}")
    assert result["status"] == "failed"
    assert "EMEP_CONFINES cannot be understood" in result["error"]["message"]


WITHOUT_LANDLOCK = """
import os, shutil, sys
from pathlib import Path
from engines.confinement import Confines, confine, landlock
landlock.version = lambda: 0
how = confine(Confines.from_environment(os.environ, Path.cwd()))
assert how == "openings", how
outside, own = Path(sys.argv[1]), Path(sys.argv[2])
(own / "link").unlink(missing_ok=True)
(own / "link").symlink_to(outside)
"""
TRIED = """
for act in (
    lambda: (outside / "mine.txt").read_text(),
    lambda: (own / "link" / "mine.txt").read_text(),
    lambda: (own / "link" / "mine.txt").write_text("gone"),
    lambda: (own / "link" / "new").write_text("new"),
    lambda: (own / "link" / "new").mkdir(),
    lambda: list((own / "link").iterdir()),
    lambda: (outside / "mine.txt").unlink(),
    lambda: (outside / "mine.txt").rename(own / "moved"),
    lambda: os.truncate(outside / "mine.txt", 0),
    lambda: shutil.rmtree(own / "link" / "."),
    lambda: Path("/etc/shadow").read_text(),
):
    try:
        act()
    except OSError:
        continue
    sys.exit("something outside was opened")
(own / "folder" / "deep").mkdir(parents=True, exist_ok=True)
(own / "folder" / "deep" / "file").write_text("mine")
(own / "folder" / "deep" / "file").rename(own / "folder" / "renamed")
shutil.rmtree(own / "folder")
(own / "written").write_text("mine")
"""
SWAPPED = """
import threading
inside = own / "inside.txt"
inside.write_text("inside")
over = threading.Event()
def swap():
    while not over.is_set():
        for target in (inside, outside / "mine.txt"):
            os.symlink(target, own / "beside")
            os.replace(own / "beside", own / "swapping")
os.symlink(inside, own / "swapping-first")
os.replace(own / "swapping-first", own / "swapping")
thread = threading.Thread(target=swap, daemon=True)
thread.start()
read = []
for _ in range(3000):
    try:
        read.append((own / "swapping").read_text())
    except OSError:
        pass
over.set()
thread.join()
assert set(read) <= {"inside"}, set(read)
"""


@pytest.mark.parametrize("program", [TRIED, SWAPPED], ids=["tried", "swapped"])
def test_where_the_kernel_has_no_landlock_openings_are_watched(node: Node, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK + program, str(node.outside), str(node.own)],
        env=node.environment(),
        cwd=node.folder,
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert node.nothing_touched()
    assert done.stderr.count("does not confine processes") == 1


def test_a_node_that_must_have_landlock_runs_nothing_without(node: Node) -> None:
    program = WITHOUT_LANDLOCK.replace("how = ", "os.environ['EMEP_REQUIRE_LANDLOCK'] = '1'\nhow = ")
    done = subprocess.run(
        [sys.executable, "-c", program, str(node.outside), str(node.own)],
        env=node.environment(),
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "does not confine processes" in done.stderr
