"""The agent, the real API with its scheduler, and real engines, all as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import EMEP, STEPS_ENGINE, end_everything_of, gone, when_written
from tests.builders.emep_server import AGENT_SECRET, EmepServer

from emep.client import EmepClient
from emep.wire.base import ENDED_STATES, JobState
from emep.wire.jobs import JobRequest, JobView, Topology

ITEM = '{"id": "1", "prompt": "1+1=", "choices": ["2", "3"], "answer": 0}\n'
Start = Callable[..., "subprocess.Popen[bytes]"]
REAL_ENGINE = str(Path(sys.executable).with_name("emep-engine"))


@pytest.fixture(scope="module")
def server() -> Iterator[EmepServer]:
    with tempfile.TemporaryDirectory(prefix="d-api-", dir="/tmp", ignore_cleanup_errors=True) as name:
        server = EmepServer(Path(name)).start()
        yield server
        server.stop()


@pytest.fixture
def client(server: EmepServer) -> Iterator[EmepClient]:
    with EmepClient.from_environment({**server.environment(), "HOME": str(server.folder)}) as client:
        yield client


@pytest.fixture
def agent(server: EmepServer, client: EmepClient, folder: Path) -> Iterator[Start]:
    """Start the agent of a node with simulated GPUs (a name of its own for each test)."""
    processes: list[subprocess.Popen[bytes]] = []
    state_dirs: list[Path] = []

    def start(name: str, engine: str, gpus: int = 4) -> subprocess.Popen[bytes]:
        state_dirs.append(folder / name)
        environment = {**os.environ, "EMEP_AGENT_TOKEN": AGENT_SECRET}
        command = [EMEP, "agent", "--simulate", str(gpus), "--name", name, "--api-url", server.url]
        command += ["--state-dir", str(state_dirs[-1]), "--engine-command", engine, "--label", f"test={name}"]
        with (folder / "agent.log").open("ab") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        until(lambda: name in {node["name"] for node in client.nodes().items})
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is not None:
            continue
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.wait(180)
    for state_dir in state_dirs:
        end_everything_of(state_dir)


def until(condition: Callable[[], Any], timeout: float = 180.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return value


def ended(client: EmepClient, job: JobView) -> JobView:
    return until(lambda: (now := client.job(job.id)).state in ENDED_STATES and now)


def submit(client: EmepClient, node: str, spec: dict[str, Any], **fields: Any) -> JobView:
    """A job for one node of this module, which its label names: nodes of other tests are still known."""
    topology = Topology(affinity={"test": node})
    return client.submit_job(JobRequest(spec=spec, topology=topology, **fields))


def check(task: Path, folder: Path) -> dict[str, Any]:
    """A compatibility check of one task file: the quickest real engine."""
    return {
        "schema_version": 1,
        "engine": "compatibility_check",
        "input": {"tasks": [task.as_uri()], "expectations": False},
        "output_uri": "out",
    }


class Waiting:
    """A task file whose reader waits until the test answers (a named pipe), however often it is read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "waiting.jsonl"
        os.mkfifo(self.path)

    def answer(self) -> None:
        """Let readers have the task from now on."""
        ready = self.path.with_suffix(".ready")
        ready.write_text(ITEM)
        # Whoever opens the path from here on reads a plain file; who waits at the pipe gets the text.
        pipe = os.open(self.path, os.O_RDWR)
        ready.replace(self.path)
        os.write(pipe, ITEM.encode())
        os.close(pipe)


def steps(*steps: list[Any]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "engine": "evolve_candidates",
        "input": {"steps": steps},
        "output_uri": "none",
    }


def test_a_second_agent_of_a_name_starts_only_once_the_first_has_left(
    server: EmepServer, client: EmepClient, agent: Start, folder: Path
) -> None:
    first = agent("twin", REAL_ENGINE)
    command = [EMEP, "agent", "--simulate", "4", "--name", "twin", "--api-url", server.url]
    command += ["--state-dir", str(folder / "other"), "--engine-command", REAL_ENGINE]
    environment = {**os.environ, "EMEP_AGENT_TOKEN": AGENT_SECRET}
    second = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, timeout=300
    )
    assert second.returncode == 1
    assert "an agent of node twin is alive already" in second.stderr
    assert "Traceback" not in second.stderr
    # The one that was there may be killed and start again at once.
    first.kill()
    first.wait()
    again = agent("twin", REAL_ENGINE)
    until(lambda: (folder / "agent.log").read_text().count("node twin offers") == 2)
    again.terminate()
    assert again.wait(300) == 0
    until(lambda: not next(node for node in client.nodes().items if node["name"] == "twin")["alive"])
    with (folder / "agent.log").open("ab") as log:
        third = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: next(node for node in client.nodes().items if node["name"] == "twin")["alive"])
    finally:
        third.terminate()
        third.wait(300)


def test_a_real_engine_runs_to_its_result_on_granted_gpus(
    client: EmepClient, agent: Start, folder: Path
) -> None:
    agent("real", REAL_ENGINE)
    task = folder / "sums.jsonl"
    task.write_text(ITEM)
    job = ended(client, submit(client, "real", check(task, folder), gpu_count=1))
    assert (job.state, job.exit_code) == (JobState.COMPLETED, 0), job.reason
    assert job.result is not None
    assert job.result["metrics"]["tasks"] == {"sums": {"items": 1, "kind": "choice"}}
    assert [gpu.node for gpu in job.gpus] == ["real"]
    assert job.allocation_id is not None
    until(lambda: client.logs(job.allocation_id or "").complete)
    # The GPUs are free again once the agent has said that nothing runs on them.
    until(lambda: not any(gpu["job_id"] for gpu in client.node("real").model_dump()["gpus"]))


def test_a_real_engine_outlives_its_agent_and_is_adopted_by_the_next(
    client: EmepClient, agent: Start, folder: Path
) -> None:
    process = agent("adopting", REAL_ENGINE)
    task = Waiting(folder)
    job = submit(client, "adopting", check(task.path, folder), gpu_count=1)
    until(lambda: client.job(job.id).state is JobState.RUNNING)
    process.kill()
    process.wait()
    process = agent("adopting", REAL_ENGINE)
    until(lambda: "is adopted" in (folder / "agent.log").read_text())
    task.answer()
    job = ended(client, job)
    assert (job.state, job.exit_code, job.epoch, job.requeues) == (JobState.COMPLETED, 0, 1, 0), job.reason
    process.terminate()
    assert process.wait(180) == 0
    assert not client.node("adopting").alive, (
        "an agent that leaves says so, and nothing more is granted there"
    )


def test_a_preempted_engine_that_cannot_stop_is_killed_and_runs_again_later(
    client: EmepClient, agent: Start, folder: Path
) -> None:
    agent("preempting", REAL_ENGINE, gpus=1)
    task = Waiting(folder)
    victim = submit(client, "preempting", check(task.path, folder), gpu_count=1, priority="low")
    until(lambda: client.job(victim.id).state is JobState.RUNNING)
    plain = folder / "plain.jsonl"
    plain.write_text(ITEM)
    urgent = submit(client, "preempting", check(plain, folder), gpu_count=1, priority="high")
    urgent = ended(client, urgent)
    assert urgent.state is JobState.COMPLETED, urgent.reason
    until(lambda: client.job(victim.id).epoch == 2)
    task.answer()
    victim = ended(client, victim)
    assert (victim.state, victim.preempted, victim.requeues) == (JobState.COMPLETED, True, 0), victim.reason
    assert victim.started_at is not None
    assert urgent.started_at is not None
    assert victim.started_at < urgent.started_at, "the first start counts"


def test_bad_input_of_a_real_engine_fails_the_job_with_its_sentence(
    client: EmepClient, agent: Start, folder: Path
) -> None:
    agent("bad", REAL_ENGINE)
    spec = {
        "schema_version": 1,
        "engine": "compatibility_check",
        "input": {"models": [(folder / "missing").as_uri()]},
        "output_uri": "out",
    }
    job = ended(client, submit(client, "bad", spec, gpu_count=0))
    assert (job.state, job.exit_code) == (JobState.FAILED, 65)
    assert "missing" in job.reason


def test_a_killed_supervisor_puts_its_job_back_in_the_same_try_and_frees_its_gpus(
    client: EmepClient, agent: Start, folder: Path
) -> None:
    agent("killed", f"{sys.executable} {STEPS_ENGINE}")
    spec = steps(["print", "working"], ["pid", str(folder / "pid")], ["wait", str(folder / "never")])
    job = submit(client, "killed", spec, gpu_count=4)
    os.kill(int(when_written(folder / "pid")), signal.SIGKILL)
    # It waits for half a minute before it is tried again.
    job = until(lambda: (now := client.job(job.id)).state is JobState.PENDING and now)
    assert (job.requeues, job.try_number, job.exit_code) == (1, 1, 137)
    assert "SIGKILL" in job.reason
    assert client.logs(job.allocation_id or "").text == "working\n"
    until(lambda: not any(gpu["job_id"] for gpu in client.node("killed").model_dump()["gpus"]))


def test_a_cancelled_job_is_ended_on_its_node(client: EmepClient, agent: Start, folder: Path) -> None:
    agent("cancelled", f"{sys.executable} {STEPS_ENGINE}")
    job = submit(client, "cancelled", steps(["pid", str(folder / "pid")], ["wait", str(folder / "never")]))
    pid = int(when_written(folder / "pid"))
    assert client.cancel(job.id, "not needed").state in (JobState.CANCELLED, JobState.YIELDING)
    assert gone(pid)
    assert ended(client, job).reason == "not needed"


def test_an_api_that_restarts_finds_the_end_of_what_ran_meanwhile(
    server: EmepServer, client: EmepClient, agent: Start, folder: Path
) -> None:
    agent("outage", f"{sys.executable} {STEPS_ENGINE}")
    failed = {"status": "failed", "exit_code": 7}
    spec = steps(
        ["pid", str(folder / "pid")],
        ["wait", str(folder / "go")],
        ["print", "done"],
        ["result", failed],
        ["exit", 7],
    )
    job = submit(client, "outage", spec)
    pid = int(when_written(folder / "pid"))
    server.stop()
    (folder / "go").touch()
    assert gone(pid)
    server.start()
    job = ended(client, job)
    assert (job.state, job.exit_code) == (JobState.FAILED, 7)
    # After a long outage the end is told first, and the rest of the log follows.
    until(lambda: client.logs(job.allocation_id or "").complete)
    assert client.logs(job.allocation_id or "").text == "done\n"


def test_a_node_whose_engine_command_fails_is_taken_out_and_its_jobs_keep_their_tries(
    server: EmepServer, client: EmepClient, agent: Start, folder: Path
) -> None:
    agent("broken", "/bin/false")
    task = folder / "task.jsonl"
    task.write_text(ITEM)
    jobs = [submit(client, "broken", check(task, folder), gpu_count=1) for _ in range(3)]
    node = until(
        lambda: next(
            (one for one in client.nodes().items if one["name"] == "broken" and one["state"] == "out"), None
        )
    )
    assert "ended with exit status 1 and left no result" in node["check_reason"]
    assert {client.job(job.id).state for job in jobs} == {JobState.PENDING}
    environment = {**os.environ, **server.environment(), "COLUMNS": "200"}
    shown = subprocess.run(
        [EMEP, "nodes"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "broken is out of service: 3 different jobs in a row failed quickly on it" in shown
    subprocess.run([EMEP, "resume", "broken", "--reason", "mended"], env=environment, check=True)
    assert next(one for one in client.nodes().items if one["name"] == "broken")["state"] == "up"
    for job in jobs:
        client.cancel(job.id)
