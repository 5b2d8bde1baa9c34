"""What evaluations and searches leave as it is: their inputs, and whatever no engine of EMEP wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders.checkpoints import save_family

from engines.cli import main


class Desk:
    """Two models, tasks, a recipe to search, and commands over them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.models = {name: Path(path) for name, path in save_family(folder / "family").items()}
        self.tasks = self.items("tasks.jsonl", "a")
        searched = {"weight": {"search": [0.1, 0.9]}}
        models = [
            {"model": str(self.models["one"]), "parameters": searched},
            {"model": str(self.models["two"]), "parameters": {"weight": 0.5}},
        ]
        self.recipe = folder / "search.yaml"
        self.recipe.write_text(json.dumps({"merge_method": "linear", "models": models}))

    def items(self, name: str, prompt: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"id": str(n), "prompt": prompt, "choices": ["b", "c"], "answer": n % 2} for n in range(3)]
        path.write_text("\n".join(map(json.dumps, lines)))
        return path

    def evaluate(self, *more: str, model: str = "one", tasks: Path | None = None) -> int:
        given = [str(self.models[model]), "--tasks", str(tasks or self.tasks), "--out", str(self.out)]
        return main(["evaluate", *given, *more])

    def evolve(self, *more: str, recipe: Path | None = None) -> int:
        given = [str(recipe or self.recipe), str(self.out), "--tasks", str(self.tasks)]
        return main(["evolve", *given, "--generations", "1", "--population", "4", *more])

    def run(self, command: str, *more: str, **named: Any) -> int:
        return int(getattr(self, command)(*more, **named))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence on stderr."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("emep-engine: ")]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize("more", [[], ["--force"]])
def test_a_file_of_ones_own_among_the_samples_is_kept(
    desk: Desk, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.evaluate() == 0
    before = (desk.out / "results.json").read_bytes()
    mine = desk.out / "samples" / "mine.txt"
    mine.write_text("mine")
    capsys.readouterr()
    assert desk.evaluate(*more) == 2
    assert "samples/mine.txt lies where evaluate writes" in told(capsys)
    assert mine.read_text() == "mine"
    assert (desk.out / "results.json").read_bytes() == before


def test_samples_of_other_tasks_of_an_evaluation_give_way(desk: Desk) -> None:
    assert desk.evaluate() == 0
    assert desk.evaluate(tasks=desk.items("others.jsonl", "z")) == 0
    assert [path.name for path in (desk.out / "samples").iterdir()] == ["others.jsonl"]
    assert desk.evaluate("--force", model="two") == 0
    assert [path.name for path in (desk.out / "samples").iterdir()] == ["tasks.jsonl"]


def test_an_evaluation_does_not_replace_its_own_baseline(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.evaluate() == 0
    baseline = desk.out / "results.json"
    before = baseline.read_bytes()
    (desk.folder / "linked").symlink_to(desk.out)
    capsys.readouterr()
    for name in (str(baseline), baseline.as_uri(), str(desk.folder / "linked" / "results.json")):
        assert desk.evaluate("--force", "--baseline", name, model="two") == 2
        assert "is an input, and evaluate writes there" in told(capsys)
        assert baseline.read_bytes() == before


def test_an_evaluation_does_not_replace_its_own_tasks(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.evaluate() == 0
    tasks = desk.items("out/samples/tasks.jsonl", "a")
    before = tasks.read_bytes()
    capsys.readouterr()
    assert desk.evaluate("--force", tasks=tasks) == 2
    assert "is an input, and evaluate writes there" in told(capsys)
    assert tasks.read_bytes() == before


@pytest.mark.parametrize("command", ["evaluate", "evolve"])
def test_a_folder_that_has_the_name_of_the_checkpoints_is_left_alone(
    desk: Desk, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = desk.out / ".checkpoints" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert desk.run(command) == 2
    assert "holds mine.txt, which is no checkpoint" in told(capsys)
    assert mine.read_text() == "mine"
    assert [path.name for path in desk.out.iterdir()] == [".checkpoints"]


def test_what_a_killed_command_has_left_of_its_checkpoints_is_no_hindrance(desk: Desk) -> None:
    """Half written or half removed: a process may be killed in any moment."""
    for name in ("step-00000001", f".step-{'0' * 32}", "step-00000002/tensors.safetensors", "rank-0/fence"):
        path = desk.out / ".checkpoints" / name
        path.mkdir(parents=True) if "/" not in name else path.parent.mkdir(parents=True)
        if "/" in name:
            path.write_bytes(b"half")
    assert desk.evolve() == 0
    assert not (desk.out / ".checkpoints").exists()


@pytest.mark.parametrize("command", ["evaluate", "evolve"])
def test_a_link_and_a_file_are_refused_as_the_output_in_a_sentence(
    desk: Desk, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.out.write_text("mine")
    assert desk.run(command) == 2
    assert "is a file; name a folder" in told(capsys)
    assert desk.out.read_text() == "mine"
    desk.out.unlink()
    other = desk.folder / "other"
    other.mkdir()
    desk.out.symlink_to(other)
    assert desk.run(command) == 2
    assert "is a link, to " in told(capsys)
    assert not any(other.iterdir())


def test_a_search_does_not_replace_its_own_recipe_or_tasks(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.evolve() == 0
    mine = desk.recipe.read_bytes()
    (desk.out / "best.yaml").write_bytes(mine)
    report = desk.items("out/report/scoreboard.json", "z")
    kept = report.read_bytes()
    capsys.readouterr()
    assert desk.evolve(recipe=desk.out / "best.yaml") == 2
    assert "best.yaml is an input, and evolve writes there" in told(capsys)
    assert (desk.out / "best.yaml").read_bytes() == mine
    assert desk.evolve("--report-tasks", str(report)) == 2
    assert "scoreboard.json is an input, and evolve writes there" in told(capsys)
    assert report.read_bytes() == kept
