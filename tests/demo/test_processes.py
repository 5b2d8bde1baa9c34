"""The keeper with real processes: nothing of it survives, however the parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emep.demo.processes import DemoError, Processes

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
# A child that detaches a grandchild into a session of its own, as an agent does with engines.
DETACHING = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
beside = pathlib.Path({pids!r} + ".new")
beside.write_text(f"{{os.getpid()}} {{child.pid}}")
beside.rename({pids!r})
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids_in(path: Path) -> list[int]:
    wait_for(path.exists)
    return [int(word) for word in path.read_text().split()]


def python(processes: Processes, name: str, code: str) -> None:
    processes.start(name, [sys.executable, "-c", code], dict(os.environ), Path.cwd())


def test_output_goes_to_the_process_s_log_and_its_end_is_known(tmp_path):
    with Processes(tmp_path) as processes:
        python(processes, "short", "print('hello'); raise SystemExit(3)")
        ended = processes.wait("short", 60)
    assert ended.code == 3
    assert (tmp_path / "short.log").read_text() == "hello\n"


def test_leaving_ends_everything_detached_grandchildren_too(tmp_path):
    with Processes(tmp_path) as processes:
        python(processes, "agent", DETACHING.format(pids=str(tmp_path / "pids")))
        pids = pids_in(tmp_path / "pids")
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)


def test_an_exception_ends_everything_too(tmp_path):
    pids = []

    def broken_off() -> None:
        with Processes(tmp_path) as processes:
            python(processes, "agent", DETACHING.format(pids=str(tmp_path / "pids")))
            pids.extend(pids_in(tmp_path / "pids"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_a_process_deaf_to_the_polite_signal_is_killed(tmp_path):
    with Processes(tmp_path) as processes:
        python(processes, "deaf", STUBBORN)
        wait_for(lambda: processes.log("deaf").exists() and processes.log("deaf").read_text())
        wait_for(lambda: processes.pid("deaf"))
        pid = processes.pid("deaf")
        assert alive(pid)
    assert not alive(pid)


def test_a_killed_child_is_one_sentence_with_its_name_and_log(tmp_path):
    with Processes(tmp_path) as processes:
        python(processes, "scheduler", "import time; time.sleep(600)")
        wait_for(lambda: processes.pid("scheduler"))
        processes.check()
        os.kill(processes.pid("scheduler"), signal.SIGKILL)
        processes.wait("scheduler", 60)
        with pytest.raises(DemoError, match=r"scheduler was killed by signal 9.*scheduler\.log"):
            processes.check()


def test_a_program_that_does_not_exist_is_told(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start("missing", ["/no/such/program"], {}, Path.cwd())
        assert processes.wait("missing", 60).code == 127


def test_a_step_that_may_end_well_is_no_failure_but_its_bad_end_is(tmp_path):
    with Processes(tmp_path) as processes:
        python(processes, "migrate", "pass")
        processes.wait("migrate", 60)
        processes.check(("migrate",))
        python(processes, "migrate", "raise SystemExit(1)")
        processes.wait("migrate", 60)
        with pytest.raises(DemoError, match="migrate ended with status 1"):
            processes.check(("migrate",))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killing_the_parent_leaves_no_process(tmp_path, number):
    child = DETACHING.format(pids=str(tmp_path / "pids"))
    code = f"""
import os, sys, time
from pathlib import Path
from emep.demo.processes import Processes
with Processes(Path({str(tmp_path)!r})) as processes:
    processes.start("agent", [sys.executable, "-c", {child!r}], dict(os.environ), Path.cwd())
    time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PLUGINS)})
    try:
        pids = pids_in(tmp_path / "pids")
        parent.send_signal(number)
        parent.wait(60)
        wait_for(lambda: not any(alive(pid) for pid in pids))
    finally:
        parent.kill()


def test_a_killed_keeper_is_noticed_and_takes_its_children_along(tmp_path):
    with Processes(tmp_path) as processes:
        python(processes, "scheduler", "import time; time.sleep(600)")
        wait_for(lambda: processes.pid("scheduler"))
        pid = processes.pid("scheduler")
        processes._keeper.kill()
        processes._keeper.wait()
        with pytest.raises(DemoError, match="keeper"):
            processes.check()
    wait_for(lambda: not alive(pid))
