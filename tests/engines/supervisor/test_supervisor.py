"""``emep-engine run`` as real processes, against a control plane over real HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.builders.control_plane import CONTINUE, ControlPlane, control_plane

from engines.schemas import validate
from engines.tracking import JsonlTracker

ROOT = Path(__file__).parents[3]
TOKEN = "b3f1c9d2e5a70461"
STOP = (200, {"directive": "checkpoint_and_exit", "grace_seconds": 300.0, "lease_seconds": 60.0})

SIGNAL_DURING_IMPORT = f"""
import importlib.util, os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "engines.supervisor.run":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
exec(open({str(ROOT / "tests" / "builders" / "engine_site" / "sitecustomize.py")!r}).read())
"""
"""A ``sitecustomize`` that has the signal come when only the command line has been imported."""


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with control_plane() as running:
        yield running


class Run:
    """One supervisor process and its folder."""

    def __init__(self, folder: Path, fields: dict[str, Any], **spec: Any) -> None:
        self.folder = folder
        self.spec = folder / "SPEC.json"
        document = {"engine": "compare", "input": fields, "output_uri": (folder / "out").as_uri(), **spec}
        self.spec.write_text(json.dumps(document), encoding="utf-8")
        self.process: subprocess.Popen[str] | None = None
        self.output = ""

    def start(self, plane: ControlPlane | None = None, **environment: str) -> Run:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("EMEP_", "CUDA_", "HIP_"))}
        lease = {}
        if plane is not None:
            lease = {
                "EMEP_API_URL": plane.url,
                "EMEP_ALLOCATION_ID": "a1",
                "EMEP_LEASE_TOKEN": TOKEN,
                "EMEP_LEASE_EPOCH": "3",
                "EMEP_HEARTBEAT_SECONDS": "0.05",
            }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engines.cli", "run", str(self.spec)],
            env={
                **clean,
                "PYTHONPATH": f"{ROOT / 'tests' / 'builders' / 'engine_site'}:{ROOT}",
                "OMP_NUM_THREADS": "1",
                **lease,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self

    def wait(self) -> int:
        assert self.process is not None
        self.output, _ = self.process.communicate(timeout=300)
        return self.process.returncode

    def result(self) -> dict[str, Any]:
        document = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
        validate("result", document)
        return document  # type: ignore[no-any-return]

    def started(self) -> list[dict[str, Any]]:
        """What each engine process said when it began, by rank."""
        found = [json.loads(path.read_text()) for path in (self.folder / "out").glob("started-*.json")]
        return sorted(found, key=lambda entry: entry["rank"])

    def checkpoints(self) -> list[str]:
        while True:
            # The engine renames folders while they are walked through.
            with suppress(FileNotFoundError):
                return sorted(entry.name for entry in (self.folder / "checkpoints").glob("**/step-*"))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def build(fields: dict[str, Any] | None = None, **spec: Any) -> Run:
        made.append(Run(tmp_path, fields or {}, **spec))
        return made[-1]

    yield build
    for entry in made:
        if entry.process is not None and entry.process.poll() is None:
            os.killpg(entry.process.pid, signal.SIGKILL)
            entry.process.wait()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(pid: int, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


def wait_for_step(plane: ControlPlane, step: int) -> None:
    plane.wait_for(lambda: any((beat["checkpoint"] or {}).get("step") == step for beat in plane.heartbeats))


# Alone.


def test_without_a_control_plane_it_runs_alone(make: Callable[..., Run]) -> None:
    run = make({"steps": 3, "then": "chatter"}).start()
    assert run.wait() == 0, run.output
    result = run.result()
    assert (result["status"], result["exit_code"], result["error"]) == ("done", 0, None)
    assert result["metrics"]["counts"]["steps"] == 3
    assert result["peak_memory_bytes"] > 5_000_000
    assert result["seconds"] > 0
    assert "steps 0/3\n" in run.output
    assert "steps 3/3\n" in run.output
    assert "a line of a library\n" in run.output
    assert "\r" not in run.output


def test_the_result_goes_where_the_environment_says(make: Callable[..., Run], tmp_path: Path) -> None:
    run = make().start(
        EMEP_RESULT_PATH=str(tmp_path / "deep" / "r.json"), EMEP_TRACKER_URI=str(tmp_path / "track")
    )
    assert run.wait() == 0, run.output
    assert json.loads((tmp_path / "deep" / "r.json").read_text())["status"] == "done"
    assert not (tmp_path / "result.json").exists()
    events = list(JsonlTracker(str(tmp_path / "track")).events())
    assert [event.kind for event in events] == ["started", "finished"]
    assert events[1].data["status"] == "done"


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("{", None, "is not JSON"),
        ('{"engine": "merg"}', "engine", "did you mean 'merge'?"),
        ('{"engine": "merge", "inputs": {}}', "inputs", "did you mean 'input'?"),
        ('{"engine": "merge", "seed": -1}', "seed", "minimum"),
        ('{"engine": "merge", "device": "gpu"}', "device", "does not match"),
        ('{"input": {}}', "engine", "is missing"),
        ('{"engine": "merge", "schema_version": 2}', "schema_version", "1 was expected"),
    ],
)
def test_a_wrong_spec_ends_with_65_and_names_file_and_field(
    make: Callable[..., Run], text: str, field: str | None, words: str
) -> None:
    run = make()
    run.spec.write_text(text, encoding="utf-8")
    assert run.start().wait() == 65, run.output
    error = run.result()["error"]
    assert words in error["message"]
    assert (error["file"], error["field"]) == (str(run.spec), field)
    assert "Traceback" not in run.output


@pytest.mark.parametrize(
    ("then", "code", "name", "words"),
    [
        ("bad_input", 65, "bad_input", "recipe.yaml: weight: 7 is too heavy"),
        ("crash", 1, "internal", "RuntimeError: boiler room on fire"),
        ("gpu_out_of_memory", 86, "gpu_out_of_memory", "20.00 GiB"),
        ("die", 137, "killed", "SIGKILL"),
        ("leave", 1, "no_result", "without a result"),
        ("nan", 1, "nonfinite_metric", "metrics.loss is not a finite number"),
    ],
)
def test_every_end_has_its_exit_code_and_reason(
    make: Callable[..., Run], plane: ControlPlane, then: str, code: int, name: str, words: str
) -> None:
    run = make({"then": then, "metrics": {}}).start(plane)
    assert run.wait() == code, run.output
    result = run.result()
    assert (result["status"], result["exit_code"], result["error"]["code"]) == ("failed", code, name)
    assert words in result["error"]["message"]
    assert [(c["exit_code"], c["result"], c["epoch"]) for c in plane.completions] == [(code, result, 3)]
    assert words in plane.completions[0]["message"]


# Under a lease.


def test_it_renews_the_lease_and_reports_progress_checkpoint_and_end(
    make: Callable[..., Run], plane: ControlPlane
) -> None:
    plane.heartbeat = lambda number, body: STOP if (body["checkpoint"] or {}).get("step") == 2 else CONTINUE
    run = make({"steps": 4, "at": 2, "then": "wait", "finish": True}).start(plane)
    assert run.wait() == 0, run.output
    assert plane.paths == {f"/emep/api/v1/allocations/a1/{verb}" for verb in ("heartbeat", "complete")}
    assert plane.tokens == {f"Bearer emep-lease.{TOKEN}"}
    assert {beat["epoch"] for beat in plane.heartbeats} == {3}
    last = plane.heartbeats[-1]
    assert last["progress"]["what"] == "steps"
    assert last["checkpoint"]["step"] >= 2
    assert last["checkpoint"]["uri"].endswith(f"step-{last['checkpoint']['step']:08d}")
    # It ended by itself within its grace: judged by its own end.
    assert plane.completions == [
        {"epoch": 3, "exit_code": 0, "result": run.result(), "message": None},
    ]


def test_the_token_is_neither_printed_nor_given_to_the_engine(
    make: Callable[..., Run], plane: ControlPlane
) -> None:
    plane.complete = lambda number, body: (403, {"detail": "no"})
    run = make().start(plane)
    assert run.wait() == 0
    assert TOKEN not in run.output
    assert TOKEN not in (run.folder / "result.json").read_text()
    assert [entry["token"] for entry in run.started()] == [False]


def test_checkpoint_and_exit_saves_and_ends_with_75(make: Callable[..., Run], plane: ControlPlane) -> None:
    fields = {"steps": 5, "at": 3, "then": "wait"}
    plane.heartbeat = lambda number, body: STOP if (body["checkpoint"] or {}).get("step") == 3 else CONTINUE
    run = make(fields).start(plane)
    assert run.wait() == 75, run.output
    assert run.result()["status"] == "preempted"
    assert plane.completions[0]["exit_code"] == 75
    assert run.checkpoints()[-1] == "step-00000003"


def test_a_preempted_run_resumes_at_its_step(make: Callable[..., Run]) -> None:
    fields = {"steps": 6, "at": 3, "then": "wait"}
    run = make(fields).start()
    wait_for_file(run, "step-00000003")
    run.process.terminate()  # type: ignore[union-attr]
    assert run.wait() == 75, run.output
    assert run.checkpoints()[-1] == "step-00000003"
    again = make(fields).start()
    time_out = time.monotonic() + 180
    while len(again.started()) < 2 and time.monotonic() < time_out:
        time.sleep(0.01)
    again.process.terminate()  # type: ignore[union-attr]
    assert again.wait() == 75
    assert "steps 0/6" not in again.output
    assert "steps 3/6" in again.output


def wait_for_file(run: Run, step: str) -> None:
    end = time.monotonic() + 180
    while step not in run.checkpoints() and time.monotonic() < end:
        time.sleep(0.01)
    assert step in run.checkpoints()


def test_an_engine_that_is_told_to_stop_before_it_has_begun_is_preempted_too(
    make: Callable[..., Run], plane: ControlPlane
) -> None:
    plane.heartbeat = lambda number, body: STOP
    run = make({"steps": 4, "at": 2, "then": "wait"}).start(plane)
    assert run.wait() == 75, run.output
    assert plane.completions[0]["exit_code"] == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_means_checkpoint_and_exit(make: Callable[..., Run], number: signal.Signals) -> None:
    run = make({"steps": 4, "at": 2, "then": "wait"}).start()
    wait_for_file(run, "step-00000002")
    os.killpg(run.process.pid, number)  # type: ignore[union-attr]
    assert run.wait() == 75, run.output
    assert number.name in run.result()["error"]["message"]


def test_a_signal_may_come_again_and_again(make: Callable[..., Run]) -> None:
    run = make({"steps": 4, "at": 2, "then": "wait"}).start()
    wait_for_file(run, "step-00000002")
    # Engine and supervisor get each of them, and the engine the supervisor's own word besides.
    for _ in range(50):
        os.killpg(run.process.pid, signal.SIGTERM)  # type: ignore[union-attr]
    assert run.wait() == 75, run.output
    assert "grace period is over" not in run.output


def test_a_signal_that_comes_while_the_supervisor_is_imported_is_not_lost(
    make: Callable[..., Run], tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SIGNAL_DURING_IMPORT, encoding="utf-8")
    run = make({"steps": 4, "at": 2, "then": "wait"})
    run.start(PYTHONPATH=f"{site}:{ROOT}")
    assert run.wait() == 75, run.output
    assert run.result()["error"]["message"] == "received SIGTERM"


def test_a_signal_that_comes_when_all_is_done_changes_nothing(
    make: Callable[..., Run], plane: ControlPlane
) -> None:
    def complete(number: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        run.process.terminate()  # type: ignore[union-attr]
        return 200, {}

    plane.complete = complete
    run = make().start(plane)
    assert run.wait() == 0, run.output
    assert run.result()["status"] == "done"


def test_a_process_that_the_engine_leaves_behind_does_not_hold_up_the_end(make: Callable[..., Run]) -> None:
    run = make({"steps": 2, "then": "leave_a_fork"}).start()
    try:
        assert run.wait() == 0, run.output
        left = json.loads((run.folder / "out" / "fork.json").read_text())["pid"]
        assert alive(left)
    finally:
        for path in (run.folder / "out").glob("fork.json"):
            os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)


def test_past_the_grace_the_engine_is_killed(make: Callable[..., Run], plane: ControlPlane) -> None:
    hurried = (200, {"directive": "checkpoint_and_exit", "grace_seconds": 0.2, "lease_seconds": 60.0})
    plane.heartbeat = lambda number, body: (
        hurried if (body["checkpoint"] or {}).get("step") == 2 else CONTINUE
    )
    run = make({"steps": 4, "at": 2, "then": "wait", "deaf": True}).start(plane)
    assert run.wait() == 75, run.output
    assert "killed after the grace period" in run.result()["error"]["message"]
    assert gone(run.started()[0]["pid"])


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"directive": "abort", "lease_seconds": 60.0}),
        (409, {"detail": "epoch 3 is over: 4"}),
    ],
    ids=["abort", "stale-epoch"],
)
def test_abort_and_a_stale_epoch_end_the_engine_at_once(
    make: Callable[..., Run], plane: ControlPlane, answer: tuple[int, dict[str, Any]]
) -> None:
    plane.heartbeat = lambda number, body: answer if (body["checkpoint"] or {}).get("step") == 2 else CONTINUE
    run = make({"steps": 4, "at": 2, "then": "wait", "deaf": True}).start(plane, EMEP_GRACE_SECONDS="3600")
    assert run.wait() == 137, run.output
    assert run.result()["error"]["code"] == "aborted"
    assert gone(run.started()[0]["pid"])
    # Who has lost the lease has nothing to report.
    assert len(plane.completions) == (0 if answer[0] == 409 else 1)


def test_an_outage_of_the_control_plane_costs_no_work(make: Callable[..., Run], plane: ControlPlane) -> None:
    # The first answer after the outage lets the engine end by itself.
    plane.heartbeat = lambda number, body: (503, {}) if number <= 8 or body["checkpoint"] is None else STOP
    plane.complete = lambda number, body: (503, {}) if number < 3 else (200, {})
    run = make({"steps": 3, "at": 1, "then": "wait", "finish": True}).start(plane)
    assert run.wait() == 0, run.output
    assert "does not answer (503" in run.output
    assert "answers again" in run.output
    assert len(plane.completions) == 3
    assert plane.completions[0] == plane.completions[2]


def test_a_control_plane_that_is_silent_too_long_means_checkpoint_and_exit(make: Callable[..., Run]) -> None:
    run = make({"steps": 4, "at": 2, "then": "wait"})
    with control_plane() as plane:
        run.start(plane, EMEP_MAX_SILENCE_SECONDS="3", EMEP_COMPLETE_SECONDS="0.5")
        wait_for_step(plane, 2)
    assert run.wait() == 75, run.output
    assert "no answer from the control plane for 3 s" in run.result()["error"]["message"]
    assert "could not be delivered" in run.output


def test_a_refused_completion_is_not_repeated(make: Callable[..., Run], plane: ControlPlane) -> None:
    plane.complete = lambda number, body: (422, {"detail": "exit_code: is no number"})
    run = make().start(plane)
    assert run.wait() == 0, run.output
    assert len(plane.completions) == 1
    assert "exit_code: is no number" in run.output


def test_a_killed_supervisor_leaves_no_engine_behind(make: Callable[..., Run], plane: ControlPlane) -> None:
    run = make({"steps": 4, "at": 2, "then": "wait", "deaf": True}).start(plane)
    wait_for_step(plane, 2)
    (engine,) = run.started()
    assert alive(engine["pid"])
    run.process.kill()  # type: ignore[union-attr]
    assert run.wait() == -signal.SIGKILL
    assert gone(engine["pid"])


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("EMEP_LEASE_TOKEN", "", "EMEP_LEASE_TOKEN is missing"),
        ("EMEP_HEARTBEAT_SECONDS", "often", "must be a number"),
        ("EMEP_GRACE_SECONDS", "-1", "must be a number"),
    ],
)
def test_a_wrong_environment_is_named(
    make: Callable[..., Run], plane: ControlPlane, variable: str, value: str, words: str
) -> None:
    run = make().start(plane, **{variable: value})
    assert run.wait() == 65, run.output
    assert words in run.result()["error"]["message"]
    assert run.result()["error"]["field"] == variable


# The outcome has been sent, and something ends the engine.


def leaving(run: Run, ranks: int = 1) -> list[int]:
    """Wait until the engine has sent its outcome and is about to end; its processes."""
    end = time.monotonic() + 180
    while len(found := sorted((run.folder / "out").glob("leaving-*.json"))) < ranks:
        assert time.monotonic() < end, "the engine did not get so far"
        time.sleep(0.01)
    return [json.loads(path.read_text())["pid"] for path in found]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_an_outcome_that_was_sent_stands_whatever_signal_ends_the_engine(
    make: Callable[..., Run], plane: ControlPlane, number: signal.Signals
) -> None:
    run = make({"steps": 3, "then": "linger"}).start(plane)
    os.kill(leaving(run)[0], number)
    assert run.wait() == 0, run.output
    result = run.result()
    assert (result["status"], result["exit_code"], result["error"]) == ("done", 0, None)
    assert result["metrics"]["counts"]["steps"] == 3
    assert plane.completions == [{"epoch": 3, "exit_code": 0, "result": result, "message": None}]


def test_a_supervisor_that_is_told_to_end_while_its_engine_ends_has_completed(
    make: Callable[..., Run], plane: ControlPlane
) -> None:
    run = make({"steps": 3, "then": "linger"}).start(plane)
    leaving(run)
    run.process.terminate()  # type: ignore[union-attr]
    assert run.wait() == 0, run.output
    assert plane.completions[0]["exit_code"] == 0
    assert plane.completions[0]["result"]["status"] == "done"


@pytest.mark.parametrize(
    "answer",
    [STOP, (200, {"directive": "abort", "lease_seconds": 60.0})],
    ids=["checkpoint_and_exit", "abort"],
)
def test_an_engine_that_is_called_off_when_it_has_finished_has_completed(
    make: Callable[..., Run], plane: ControlPlane, answer: tuple[int, dict[str, Any]]
) -> None:
    run = make({"steps": 3, "then": "linger"}, engine="evolve_candidates")
    done = run.folder / "called-off"
    plane.heartbeat = lambda number, body: answer if done.exists() else CONTINUE
    run.start(plane, EMEP_GPU_INDICES="0,1")
    leaving(run, ranks=2)
    done.touch()
    assert run.wait() == 0, run.output
    assert [(end["exit_code"], end["result"]["status"]) for end in plane.completions] == [(0, "done")]


def test_a_result_names_the_epoch_in_which_it_was_written(
    make: Callable[..., Run], plane: ControlPlane
) -> None:
    run = make().start(plane)
    assert run.wait() == 0, run.output
    assert run.result()["epoch"] == 3


def test_a_disk_that_takes_no_result_loses_none_that_the_control_plane_has(
    make: Callable[..., Run], plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    run = make().start(plane, EMEP_RESULT_PATH=str(tmp_path / "file" / "result.json"))
    assert run.wait() == 0, run.output
    assert "cannot write the result" in run.output
    assert [(end["exit_code"], end["result"]["status"]) for end in plane.completions] == [(0, "done")]


def test_a_short_result_is_left_as_a_container_s_last_word(
    make: Callable[..., Run], plane: ControlPlane, tmp_path: Path
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    run = make({"then": "x", "metrics": {"kept": True}}).start(plane, EMEP_TERMINATION_LOG=str(message))
    assert run.wait() == 0, run.output
    assert json.loads(message.read_text()) == run.result()


def test_a_result_that_kubernetes_would_cut_is_not_left(
    make: Callable[..., Run], plane: ControlPlane, tmp_path: Path
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    run = make({"then": "x", "metrics": {"long": "x" * 4096}}).start(plane, EMEP_TERMINATION_LOG=str(message))
    assert run.wait() == 0, run.output
    assert message.read_text() == ""


# Several GPUs.


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,5"}, [("2", None), ("5", None)]),
        ({"CUDA_VISIBLE_DEVICES": "", "EMEP_GPU_INDICES": "0,3"}, [("", "0"), ("", "3")]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-ab12"}, [("GPU-ab12", None)]),
        ({}, [(None, None)]),
    ],
)
def test_a_parallel_engine_has_a_process_for_each_granted_gpu(
    make: Callable[..., Run], environment: dict[str, str], seen: list[tuple[str | None, str | None]]
) -> None:
    run = make({"steps": 2}, engine="evolve_candidates").start(**environment)
    assert run.wait() == 0, run.output
    started = run.started()
    assert [(entry["cuda"], entry["indices"]) for entry in started] == seen
    assert [(entry["rank"], entry["world"]) for entry in started] == [
        (i, len(seen)) for i in range(len(seen))
    ]
    metrics = run.result()["metrics"]
    assert metrics["rank"] == 0
    assert metrics["counts"] == {"steps": 2 * len(seen), **{f"rank{i}": 1 for i in range(len(seen))}}


def test_other_engines_have_one_process_that_sees_all_gpus(make: Callable[..., Run]) -> None:
    run = make({"steps": 2}).start(CUDA_VISIBLE_DEVICES="2,5")
    assert run.wait() == 0, run.output
    assert [(entry["cuda"], entry["world"]) for entry in run.started()] == [("2,5", 1)]


def test_when_one_rank_fails_the_others_checkpoint_and_end(make: Callable[..., Run]) -> None:
    fields = {"steps": 2000, "at": 3, "rank": 1, "then": "bad_input"}
    run = make(fields, engine="evolve_candidates").start(EMEP_GPU_INDICES="0,1,2")
    assert run.wait() == 65, run.output
    assert "too heavy" in run.result()["error"]["message"]
    assert all(gone(entry["pid"]) for entry in run.started())


def test_told_to_stop_every_rank_checkpoints(make: Callable[..., Run], plane: ControlPlane) -> None:
    fields = {"steps": 4, "at": 2, "then": "wait"}
    run = make(fields, engine="evolve_candidates").start(plane, EMEP_GPU_INDICES="0,1")
    wait_for_step(plane, 2)
    end = time.monotonic() + 180
    while run.checkpoints().count("step-00000002") < 2 and time.monotonic() < end:
        time.sleep(0.01)
    run.process.terminate()  # type: ignore[union-attr]
    assert run.wait() == 75, run.output
    assert run.checkpoints().count("step-00000002") == 2


# A real engine.


def test_a_real_merge_under_a_lease(make: Callable[..., Run], plane: ControlPlane, tmp_path: Path) -> None:
    from tests.builders.checkpoints import save_family

    family = save_family(tmp_path / "models")
    recipe = {
        "merge_method": "linear",
        "models": [{"model": str(family[name]), "parameters": {"weight": 1}} for name in ("one", "two")],
    }
    run = make({"recipe": recipe, "output_name": "m"}, engine="merge").start(plane)
    assert run.wait() == 0, run.output
    result = plane.completions[0]["result"]
    assert result["outputs"]["model"]["uri"] == (tmp_path / "out" / "m").as_uri()
    assert set(result["input_digests"]) == {str(family["one"]), str(family["two"])}
    assert "torch" in result["versions"]
