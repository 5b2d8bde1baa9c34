"""What the witness files can see: real supervisors and engines, alone, without a control plane."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.evidence import lines
from tests.chaos.invariants import INVARIANTS
from tests.chaos.model import Evidence, StepLine, WitnessLine
from tests.chaos.processes import MARK, NODE, find, kill_all
from tests.chaos.services import clean_environment

ROOT = Path(__file__).resolve().parents[2]


class Bench:
    """Runs of the chaos engine in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, job: str, epoch: int = 1, gpu: int = 0, **fields: Any) -> subprocess.Popen[bytes]:
        """A supervisor with its engine on GPU ``gpu``."""
        run = self.folder / f"{job}-{epoch}"
        run.mkdir()
        given = {"steps": 4, "step_seconds": 0.1, "checkpoint_every": 2, **fields}
        (run / "SPEC.json").write_text(json.dumps({"engine": "chaos_steps", "input": given}))
        env = {
            **clean_environment(),
            "PYTHONPATH": f"{ROOT / 'tests' / 'builders' / 'chaos_site'}:{ROOT}",
            "EMEP_JOB_ID": job,
            "EMEP_ALLOCATION_ID": f"{job}.{epoch}",
            "EMEP_LEASE_EPOCH": str(epoch),
            "EMEP_GPU_INDICES": str(gpu),
            "EMEP_CHECKPOINT_URI": (self.folder / "checkpoints" / job).as_uri(),
            "EMEP_ARTIFACT_URI": (self.folder / "artifacts").as_uri(),
            MARK: str(self.folder),
            NODE: "n0",
        }
        command = [str(Path(sys.executable).with_name("emep-engine")), "run", str(run / "SPEC.json")]
        self._started.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
        return self._started[-1]

    def evidence(self) -> Evidence:
        """What the engines have written so far."""
        witness = [line for path in (self.folder / "witness").glob("*.jsonl") for line in lines(path)]
        steps = [
            (path.stem, line) for path in (self.folder / "steps").glob("*.jsonl") for line in lines(path)
        ]
        return Evidence(
            witness=tuple(WitnessLine(**line) for line in witness),
            steps=tuple(StepLine(log=name, **line) for name, line in steps),
        )

    def until(self, condition: Callable[[Evidence], Any], seconds: float = 60.0) -> None:
        """Wait until the files say so."""
        deadline = time.monotonic() + seconds
        while not condition(self.evidence()):
            assert time.monotonic() < deadline, self.evidence()
            time.sleep(0.05)

    def end(self) -> None:
        """Nothing is left."""
        kill_all(self.folder)
        for process in self._started:
            process.wait(10)


@pytest.fixture
def bench(tmp_path: Path):
    made = Bench(tmp_path)
    yield made
    made.end()


def test_two_engines_on_one_gpu_are_seen(bench: Bench) -> None:
    bench.start("one", steps=200)
    bench.until(lambda evidence: any(line.kind == "alive" for line in evidence.witness))
    bench.start("two")
    bench.until(lambda evidence: any(line.kind == "collision" for line in evidence.witness))
    found = INVARIANTS["no_gpu_used_twice"](bench.evidence())
    assert [violation for violation in found if '"job": "one"' in violation.sentence]


def test_a_gpu_is_free_at_the_very_death_of_its_engine(bench: Bench) -> None:
    """The supervisor is killed, the kernel kills its engine, and the next one finds the lock open."""
    first = bench.start("job", steps=200, checkpoint_every=1)
    bench.until(lambda evidence: any(line.kind == "checkpoint" for line in evidence.steps))
    os.kill(first.pid, signal.SIGKILL)
    first.wait(10)
    while any(process.kind == "engine" for process in find(bench.folder)):
        time.sleep(0.01)
    assert bench.start("job", epoch=2, steps=8, checkpoint_every=1).wait(60) == 0
    evidence = bench.evidence()
    assert INVARIANTS["no_gpu_used_twice"](evidence) == []
    assert {line.epoch for line in evidence.witness if line.kind == "start"} == {1, 2}


def test_a_killed_engine_s_steps_below_its_checkpoint_are_not_done_again(bench: Bench) -> None:
    first = bench.start("job", steps=8)
    bench.until(lambda evidence: any(line.kind == "step" and line.step == 3 for line in evidence.steps))
    kill_all(bench.folder)
    first.wait(10)
    assert bench.start("job", epoch=2, steps=8).wait(60) == 0
    evidence = bench.evidence()
    resumed = [line.step for line in evidence.steps if line.kind == "resume" and line.epoch == 2]
    assert resumed
    assert resumed[0] >= 2
    assert INVARIANTS["no_finished_step_redone"](evidence) == []
    done = [line.step for line in evidence.steps if line.kind == "step"]
    assert set(done) == set(range(1, 9))
