"""Processes that are not children, pids that are used again, groups that scatter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from emep.agent.process import ProcessIdentity, kill_members, members


@pytest.fixture
def stranger() -> Iterator[int]:
    """A sleeping process whose parent is gone."""
    program = "sleep 300 >/dev/null 2>&1 & echo $!"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def test_the_end_of_a_process_that_is_no_child_is_noticed(stranger: int) -> None:
    identity = ProcessIdentity.of(stranger)
    waiting = asyncio.create_task(identity.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    os.kill(stranger, signal.SIGTERM)
    async with asyncio.timeout(60):
        await waiting
    assert not identity.alive()


def test_another_process_with_the_same_pid_is_not_taken_for_it(stranger: int) -> None:
    identity = ProcessIdentity.of(stranger)
    earlier = ProcessIdentity(stranger, identity.start_ticks - 1, identity.boot_id)
    before_boot = ProcessIdentity(stranger, identity.start_ticks, "another boot")
    assert identity.alive()
    assert not earlier.alive()
    assert not before_boot.alive()
    assert not earlier.send(signal.SIGKILL)
    assert identity.alive(), "a stranger must never be killed"


async def test_waiting_for_what_is_gone_returns_at_once(stranger: int) -> None:
    earlier = ProcessIdentity(stranger, 1, "another boot")
    async with asyncio.timeout(60):
        await earlier.wait()


def test_a_zombie_does_not_run() -> None:
    with subprocess.Popen(["true"]) as child:
        identity = ProcessIdentity.of(child.pid)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not identity.alive()


def test_work_is_found_by_its_marks_in_whatever_session() -> None:
    marks = {"EMEP_ALLOCATION_ID": f"test-{os.getpid()}", "EMEP_LEASE_EPOCH": "3"}
    started = [
        subprocess.Popen(["sleep", "300"], env={**os.environ, **marks}, start_new_session=own)
        for own in (True, False)
    ]
    other = subprocess.Popen(["sleep", "300"], env={**os.environ, **marks, "EMEP_LEASE_EPOCH": "33"})
    try:
        assert {found.pid for found in members(None, marks)} == {child.pid for child in started}
        assert asyncio.run(kill_members(None, marks))
        assert [child.wait() for child in started] == [-signal.SIGKILL] * 2
        assert other.poll() is None, "another epoch is other work"
    finally:
        for child in (*started, other):
            child.kill()
            child.wait()


def test_work_without_its_marks_is_found_in_its_session() -> None:
    with subprocess.Popen(["sh", "-c", "env -i sleep 300 & wait"], start_new_session=True) as leader:
        while len(members(leader.pid, {"X": "nobody has this"})) < 2:
            time.sleep(0.01)
        assert asyncio.run(kill_members(leader.pid, {"X": "nobody has this"}))
        assert members(leader.pid, {"X": "nobody has this"}) == []
