"""The harness's own parts: who is killed, what is started again, what is found and cleared away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.airflow_plane import busy_workers
from tests.chaos.harness import Harness, Killing
from tests.chaos.processes import MARK, children, find, kill_all, kind_of
from tests.chaos.services import Service, Services, clean_environment
from tests.chaos.settings import ChaosSettings

from emep.agent.process import read_stat


def harness(folder: Path) -> Harness:
    return Harness(ChaosSettings(folder), plane=None)  # type: ignore[arg-type] - nothing is started


def test_every_kind_gets_its_share_where_all_are_there(tmp_path: Path) -> None:
    run = harness(tmp_path)
    everything = dict.fromkeys(("agent", "supervisor", "engine", "wrapper"))
    for _ in range(110):
        kind = run._whose_turn(everything)
        assert kind is not None
        run.killed.append(Killing(0.0, kind, ""))
    assert Counter(kill.kind for kill in run.killed) == {
        "agent": 30,
        "supervisor": 30,
        "engine": 40,
        "wrapper": 10,
    }


def test_agents_do_not_die_for_engines_that_are_not_there(tmp_path: Path) -> None:
    run = harness(tmp_path)
    run._whose_turn({"agent": 1, "engine": 1})
    turns = [run._whose_turn({"agent": 1}) for _ in range(1)]
    run.killed += [Killing(0.0, "agent", "")] * 9
    waits = [run._whose_turn({"agent": 1}) for _ in range(9)]
    assert turns == ["agent"]
    assert waits == [None] * 8 + ["agent"]
    assert run._whose_turn({"agent": 1, "engine": 1}) == "engine"
    assert run._whose_turn({}) is None


def test_a_daemon_is_killed_no_sooner_than_three_times_its_start_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    daemon = service(tmp_path, ["sleep", "600"])
    daemon.start()
    try:
        assert not daemon.may_be_killed(3)
        now = 110.0
        daemon.look()
        assert daemon.start_up == 10.0
        now = 139.0
        assert not daemon.may_be_killed(3)
        now = 141.0
        assert daemon.may_be_killed(3)
    finally:
        daemon.send(signal.SIGKILL)
        assert daemon.process is not None
        daemon.process.wait()
    assert not daemon.may_be_killed(3)


def service(folder: Path, argv: list[str], **fields: Any) -> Service:
    env = {**clean_environment(), MARK: str(folder)}
    return Service("it", "it", argv, env, folder, folder / "it.log", **fields)


def test_what_dies_is_started_again_unless_it_is_to_stay_down(tmp_path: Path) -> None:
    services = Services(tmp_path)
    it = services.add(service(tmp_path, ["sleep", "600"]))
    first = it.process
    assert first is not None
    first.kill()
    first.wait()
    services.tend()
    assert it.process is not first
    assert it.is_alive()
    services.down.add("it")
    it.send(signal.SIGKILL)
    assert it.end(10) == -signal.SIGKILL
    services.tend()
    assert not it.is_alive()
    assert it.starts == 2
    assert list(find(tmp_path, services.sessions)) == []


def test_the_group_of_a_service_goes_with_it(tmp_path: Path) -> None:
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '600']); print(1, flush=True); time.sleep(600)"
    )
    it = Services(tmp_path).add(service(tmp_path, [sys.executable, "-c", script], group=True))
    while not it.log.read_text():
        time.sleep(0.01)
    it.send(signal.SIGKILL)
    it.end(10)
    until = time.monotonic() + 10
    while left := list(find(tmp_path)):
        assert time.monotonic() < until, left


def test_processes_are_found_by_their_mark_or_their_session_and_cleared_away(tmp_path: Path) -> None:
    marked = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(tmp_path)})
    unmarked = subprocess.Popen(["sleep", "601"], start_new_session=True)
    stranger = subprocess.Popen(["sleep", "602"], env={**os.environ, MARK: f"{tmp_path}-other"})
    try:
        assert {process.pid for process in find(tmp_path)} == {marked.pid}
        assert {process.pid for process in find(tmp_path, {unmarked.pid})} == {marked.pid, unmarked.pid}
        assert len(kill_all(tmp_path, {unmarked.pid})) >= 2
        assert marked.wait(10) == unmarked.wait(10) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for process in (marked, unmarked, stranger):
            process.kill()
            process.wait()


def tree(*workers: str) -> subprocess.Popen[str]:
    """A process with shells below it that do this."""
    script = "import subprocess, sys; [subprocess.Popen(['sh', '-c', w]) for w in sys.argv[1:]]; input()"
    found = subprocess.Popen(
        [sys.executable, "-c", script, *workers], stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 30
    while len(children(found.pid)) < len(workers) or not any(map(children, children(found.pid))):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def test_only_workers_that_run_a_task_are_killed_with_their_tasks() -> None:
    scheduler = tree("read idle", "sleep 600; read more", "read idle")
    try:
        (busy,) = (pid for pid in children(scheduler.pid) if children(pid))
        (task,) = children(busy)
        assert {victim.pid for victim in busy_workers(scheduler.pid)} == {busy, task}
        assert all(victim.kill() for victim in busy_workers(scheduler.pid) if victim.pid == busy)
        until = time.monotonic() + 30
        while busy in children(scheduler.pid):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        os.killpg(scheduler.pid, signal.SIGKILL)
        scheduler.communicate()


def test_a_worker_that_has_ended_its_task_meanwhile_goes_on() -> None:
    scheduler = tree("sleep 600; read more")
    try:
        (worker,) = (victim for victim in busy_workers(scheduler.pid) if victim.only_if)
        os.kill(children(worker.pid)[0], signal.SIGKILL)
        while children(worker.pid):
            time.sleep(0.01)
        assert not worker.kill()
        assert worker.identity.alive()
        stat = read_stat(worker.pid)
        assert stat is not None
        assert stat.state != "T"
        assert busy_workers(scheduler.pid) == []
    finally:
        os.killpg(scheduler.pid, signal.SIGKILL)
        scheduler.communicate()


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("python -I -S /x/wrapper.py /run 3 -- /bin/emep-engine run SPEC.json", "wrapper"),
        ("python /bin/emep-engine run SPEC.json", "supervisor"),
        ("python -m engines.supervisor.child SPEC.json", "engine"),
        ("python /bin/emep agent --name n0 --state-dir /x", "agent"),
        ("python -m tests.builders.emep_server /x 18260", "api-server"),
        ("sleep 5", "other"),
    ],
)
def test_processes_are_told_apart_by_their_command(command: str, kind: str) -> None:
    assert kind_of(command) == kind
