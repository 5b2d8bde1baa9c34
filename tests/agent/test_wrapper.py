"""The wrapper: one run, once; how it ended, written down; nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.conftest import gone, when_written

from emep.agent import wrapper
from emep.agent.folders import RunFolder

SCRIPT = wrapper.__file__


def start(folder: Path, *command: str) -> tuple[subprocess.Popen[bytes], int]:
    """A wrapper of a command, and the end of the pipe on which it says that it has started."""
    reader, writer = os.pipe()
    with Path(f"{folder}.out").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", SCRIPT, str(folder), str(writer), "--", *command],
            pass_fds=(writer,),
            start_new_session=True,
            stdout=output,
            stderr=output,
        )
    os.close(writer)
    return process, reader


def word(reader: int) -> bytes:
    with os.fdopen(reader, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("program", "status"), [("exit 0", 0), ("exit 75", 75), ("kill -9 $$", 137), ("kill $$", 143)]
)
def test_how_the_command_ended_is_written_down(tmp_path: Path, program: str, status: int) -> None:
    process, reader = start(tmp_path, "sh", "-c", program)
    assert word(reader) == b"started\n"
    assert process.wait(180) == status
    assert RunFolder(tmp_path).exit_code() == status


def test_a_second_wrapper_runs_nothing(tmp_path: Path) -> None:
    first, reader = start(tmp_path, "sh", "-c", "read x")
    word(reader)
    second, reader = start(tmp_path, "touch", str(tmp_path / "twice"))
    assert word(reader) == b""
    assert second.wait(180) == wrapper.ALREADY_CLAIMED
    assert not (tmp_path / "twice").exists()
    claim = RunFolder(tmp_path).claim()
    assert claim is not None
    assert claim.pid == first.pid
    first.wait(180)


def test_a_folder_that_was_given_up_is_not_run(tmp_path: Path) -> None:
    process, reader = start(tmp_path / "removed", "true")
    assert word(reader) == b""
    assert process.wait(180) == wrapper.ALREADY_CLAIMED


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    process, reader = start(tmp_path, "/nowhere/engine")
    assert word(reader) == b""
    process.wait(180)
    assert (
        Path(f"{tmp_path}.out").read_text()
        == "emep agent: /nowhere/engine cannot be started: No such file or directory\n"
    )
    assert RunFolder(tmp_path).exit_code() == 127


def test_orphans_are_ended_before_the_end_is_written_down(tmp_path: Path) -> None:
    orphan = tmp_path / "orphan"
    child = f"echo $$ > {orphan}.part; mv {orphan}.part {orphan}; sleep 300"
    program = f"setsid sh -c '{child}' & while ! test -e {orphan}; do sleep 0.02; done; exit 3"
    process, reader = start(tmp_path, "sh", "-c", program)
    word(reader)
    assert process.wait(180) == 3
    assert gone(int(when_written(orphan)), timeout=0)


def test_sigterm_reaches_the_command_through_its_own_pid_only(tmp_path: Path) -> None:
    program = f"trap 'exit 75' TERM; touch {tmp_path}/ready; while true; do sleep 0.02; done"
    process, reader = start(tmp_path, "sh", "-c", program)
    word(reader)
    when_written(tmp_path / "ready")
    process.send_signal(signal.SIGTERM)
    supervisor = RunFolder(tmp_path).supervisor()
    assert supervisor is not None
    assert supervisor.send(signal.SIGTERM)
    assert process.wait(180) == 75
    assert json.loads((tmp_path / "exit.json").read_text())["exit_code"] == 75
