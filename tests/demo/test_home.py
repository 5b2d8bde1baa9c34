from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from emep.demo.environment import environment
from emep.demo.home import DemoHome, HomeLock, check_port, project_root
from emep.demo.processes import DemoError


@pytest.fixture
def home(tmp_path):
    home = DemoHome(tmp_path / "home")
    home.create()
    return home


def test_secrets_are_made_once_and_only_their_owner_reads_them(home):
    first = home.secrets()
    assert home.secrets() == first
    for path in (home.root / "secrets.json", home.passwords):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len({first.admin_password, first.service_password, first.agent_token, first.jwt_secret}) == 4


def test_two_homes_have_different_secrets(home, tmp_path):
    other = DemoHome(tmp_path / "other")
    other.create()
    assert other.secrets().jwt_secret != home.secrets().jwt_secret


def test_damaged_secrets_are_said_in_one_sentence(home):
    (home.root / "secrets.json").write_text("{")
    with pytest.raises(DemoError, match=r"secrets\.json"):
        home.secrets()


def test_a_folder_that_cannot_be_made_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoError, match="cannot be written") as caught:
        DemoHome(tmp_path / "file" / "home").create()
    assert caught.value.status == 2
    assert "--home" in str(caught.value)


def test_a_port_that_is_taken_is_said_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DemoError, match=rf"port {port} is taken.*--port"):
            check_port(port)
    check_port(port)


def test_a_second_demo_in_the_same_home_is_refused(home):
    first, second = HomeLock(home), HomeLock(home)
    first.acquire()
    with pytest.raises(DemoError, match=r"runs in .* already"):
        second.acquire()


def test_the_environment_takes_nothing_of_another_airflow_and_listens_on_loopback_only(home):
    base = {"PATH": "/bin", "AIRFLOW__CORE__FERNET_KEY": "other", "AIRFLOW_HOME": "/other", "EMEP_TOKEN": "x"}
    env = environment(home, project_root(), home.secrets(), 18123, base)
    assert env["PATH"] == "/bin"
    assert env["AIRFLOW_HOME"] == str(home.airflow)
    assert env["AIRFLOW__CORE__FERNET_KEY"] != "other"
    assert "EMEP_TOKEN" not in env
    assert env["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert env["EMEP_API_URL"] == "http://127.0.0.1:18123"
    assert "0.0.0.0" not in str({key: value for key, value in env.items() if key != "PATH"})  # noqa: S104


def test_no_gate_of_airflow_is_narrow_in_the_demo(home):
    env = environment(home, project_root(), home.secrets(), 18123, {})
    assert int(env["AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG"]) >= 1000
    assert int(env["AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG"]) >= 64
    assert int(env["AIRFLOW__TRIGGERER__CAPACITY"]) >= 10_000


def test_a_folder_without_permission_is_said_in_one_sentence():
    # In /proc nobody may make a folder, not even root.
    with pytest.raises(DemoError, match="cannot be written"):
        DemoHome(Path("/proc/self/home")).create()
