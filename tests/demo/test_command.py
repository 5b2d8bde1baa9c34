"""The README's demo command itself, small sizes; and how it says no."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.builders.ports import reserve_port
from tests.builders.real_airflow import emep, processes_of


def gone(folder: Path, seconds: float = 180.0) -> bool:
    until = time.monotonic() + seconds
    while processes_of(folder):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "home"


@pytest.mark.demo
def test_the_demo_merges_evolves_evaluates_shows_the_scoreboard_and_ends(home):
    demo = emep("demo", "--exit", "--small", "--home", str(home), "--port", str(reserve_port(18110, 18129)))
    output, _ = demo.communicate(timeout=1500)
    assert demo.returncode == 0, output
    assert "Airflow is ready after" in output
    assert "user admin, password" in output
    for row in (
        "base",
        "expert-upright",
        "expert-turned",
        "mislabelled",
        "best uniform average",
        "evolved merge",
    ):
        assert row in output.split("Scoreboard")[1]
    assert "generation 1: best 0." in output
    assert gone(home), processes_of(home)


@pytest.mark.demo
def test_a_second_run_uses_what_is_there_and_a_killed_demo_leaves_no_process(home):
    models = (home / "models" / "manifest.json").stat().st_mtime_ns
    secrets = (home / "secrets.json").read_text()
    demo = emep("demo", "--small", "--home", str(home), "--port", str(reserve_port(18110, 18129)))
    try:
        for line in demo.stdout:
            if line.startswith("Run "):
                break
        assert demo.poll() is None
        assert len(processes_of(home)) > 5
        assert (home / "models" / "manifest.json").stat().st_mtime_ns == models
        assert (home / "secrets.json").read_text() == secrets
        os.kill(demo.pid, signal.SIGKILL)
        demo.wait(30)
        assert gone(home), processes_of(home)
    finally:
        demo.kill()
        demo.stdout.close()


def refused(*arguments: str) -> str:
    demo = emep("demo", *arguments)
    output, _ = demo.communicate(timeout=300)
    assert demo.returncode == 2, output
    assert len(output.strip().splitlines()) == 1, output
    return output


def test_a_port_that_is_taken_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        output = refused("--home", str(tmp_path / "home"), "--port", str(port))
    assert f"port {port} is taken" in output


@pytest.mark.parametrize("port", ["0", "70000"])
def test_a_port_that_is_none_is_one_sentence(tmp_path, port):
    assert "--port" in refused("--home", str(tmp_path / "home"), "--port", port)
    assert not (tmp_path / "home").exists()


def test_a_home_that_cannot_be_written_is_one_sentence():
    assert "/proc/demo" in refused("--home", "/proc/demo")
