"""``emep-engine`` as people call it: exit codes, what is printed where, and nothing half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders.checkpoints import save_family

from engines.cli import main
from engines.schemas import NAMES


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(path) for name, path in save_family(tmp_path_factory.mktemp("family")).items()}


@pytest.fixture
def config(family: dict[str, str], tmp_path: Path) -> Path:
    entries = [
        {"model": family[name], "parameters": {"weight": 0.5, "density": 0.5}} for name in ("one", "two")
    ]
    recipe = {"merge_method": "dare_ties", "base_model": family["base"], "models": entries}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_merge_writes_the_model_and_says_where(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", str(config), str(tmp_path / "out"), "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert str(tmp_path / "out") in shown.out
    assert "tensors 30/30\n" in shown.out
    assert shown.err == ""
    assert names(tmp_path) == ["out", "recipe.yaml"]
    assert json.loads((tmp_path / "out" / "emep_merge.json").read_text())["seed"] == 3


def test_an_output_that_exists_is_refused_unless_forced(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["merge", str(config), str(tmp_path / "out")]
    assert main(command) == 0
    first = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert main([*command, "--seed", "1"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == first
    assert main([*command, "--seed", "1", "--force"]) == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != first
    assert names(tmp_path) == ["out", "recipe.yaml"]


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", str(config), str(tmp_path / "out"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for words in ("dare_ties", "30 tensors", "6,896 parameters", "memory", "time", "float32"):
        assert words in shown
    assert names(tmp_path) == ["recipe.yaml"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("dare_ties", "dare_tie"), "did you mean 'dare_ties'?"),
        (("density", "densty"), "did you mean 'density'?"),
        (("/one", "/nowhere"), "there is no model folder"),
        (("{", "["), "not valid YAML"),
    ],
)
def test_a_bad_recipe_ends_with_2_and_one_sentence(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], words: str
) -> None:
    config.write_text(config.read_text().replace(*change), encoding="utf-8")
    assert main(["merge", str(config), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert str(config) in error
    assert names(tmp_path) == ["recipe.yaml"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["mrege"],
        ["merge", "only-one"],
        ["merge", "a", "b", "--seed", "-1"],
        ["merge", "a", "b", "--shard-size", "many"],
        ["schema", "specs"],
        ["run"],
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: emep-engine" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_schema_prints_a_json_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["schema_version"] == schema["properties"]["schema_version"] | {"const": 1}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["merge", "--help"], ["run", "--help"], ["schema", "--help"], ["--version"]]
)
def test_help_is_there(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "emep-engine" in capsys.readouterr().out


def test_what_needs_no_torch_loads_none(config: Path) -> None:
    code = (
        "import sys\n"
        "from engines.cli import main\n"
        "import engines.supervisor.run, engines.supervisor.child, engines.merge.plan.compatibility\n"
        f"assert main(['merge', {str(config)!r}, 'out', '--dry-run']) == 0\n"
        "from engines.merge.plan.compatibility import check_recipe\n"
        f"check_recipe({str(config)!r})\n"
        "names = {'torch', 'transformers', 'numpy', 'great_expectations', 'airflow', 'emep'}\n"
        "heavy = names & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=config.parent
    )
    assert done.returncode == 0, done.stderr
