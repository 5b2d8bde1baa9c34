"""A search whose processes are killed with SIGKILL ends with the populations of one left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.builders.evolving import SmallSearch, records_of

from engines.evolution.loop import LoopSettings, evolve

ROOT = Path(__file__).parents[3]

PROGRAM = """
import json, sys
from engines.evolution.loop import LoopSettings, evolve
run_uri, recipe, task = sys.argv[1:4]
evolve(LoopSettings(run_uri, json.loads(recipe), (task,), 3, 6, seed=7, device="cpu"))
print("finished", flush=True)
"""


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> SmallSearch:
    return SmallSearch(tmp_path_factory.mktemp("search"))


def start(search: SmallSearch, run: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, run.as_uri(), json.dumps(search.recipe), search.task],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def files_of(run: Path) -> int:
    """JSON files below a run; ``os.walk`` passes over folders that the search removes in this moment."""
    return sum(name.endswith(".json") for _, _, names in os.walk(run) for name in names)


def test_kill_9_anywhere_gives_the_same_final_population(tmp_path: Path, search: SmallSearch) -> None:
    undisturbed = start(search, tmp_path / "whole")
    assert "finished" in undisturbed.communicate()[0]
    total = files_of(tmp_path / "whole")
    run = tmp_path / "killed"
    generator = random.Random(11)
    # Killed as soon as so many records are there: in one generation or another, or between them. A quarter of
    # them is still to come, so that a search that is not killed at once has not ended by itself.
    marks = sorted(generator.sample(range(2, 3 * total // 4), 3))
    for mark in marks:
        process = start(search, run)
        try:
            while process.poll() is None and files_of(run) < mark:
                time.sleep(0.002)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    finished = start(search, run)
    assert "finished" in finished.communicate()[0]
    assert records_of(run) == records_of(tmp_path / "whole")


def test_processes_that_share_a_generation_find_what_one_finds(tmp_path: Path, search: SmallSearch) -> None:
    for name, processes in (("one", 1), ("two", 2)):
        settings = LoopSettings(
            run_uri=(tmp_path / name).as_uri(),
            recipe=search.recipe,
            tasks=(search.task,),
            generations=1,
            population=4,
            device="cpu",
            processes=processes,
        )
        evolve(settings)
    assert records_of(tmp_path / "two") == records_of(tmp_path / "one")


def test_the_command_goes_on_with_a_run_that_is_there(
    tmp_path: Path, search: SmallSearch, capsys: pytest.CaptureFixture[str]
) -> None:
    from engines.cli import main

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(search.recipe))
    arguments = ["evolve", str(recipe), str(tmp_path / "run"), "--tasks", search.task, "--population", "4"]
    arguments += ["--device", "cpu", "--generations"]
    assert main([*arguments, "1"]) == 0
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "results").iterdir()}
    assert main([*arguments, "2"]) == 0
    assert all(file.stat().st_mtime_ns == time for file, time in before.items())
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("best.yaml")
    assert sum(line.startswith("generation 0:") for line in lines) == 2
    assert main([*arguments, "0"]) == 2
    assert "--generations" in capsys.readouterr().err
