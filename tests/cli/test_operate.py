"""share, history, requeue, drain, resume and dlq against the real API."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.builders.emep_server import AGENT_SECRET, EmepServer
from tests.cli.conftest import Emep

from emep.client import EmepClient, agent_token
from emep.wire.jobs import JobRequest
from emep.wire.nodes import GpuReport, NodeRequest

SPEC = {"schema_version": 1, "engine": "merge", "input": {}, "output_uri": "none"}
READ = ["queue", "nodes", "share", "history", "dlq list"]


@pytest.fixture
def client(server: EmepServer) -> Iterator[EmepClient]:
    with EmepClient.from_environment({**server.environment(), "HOME": str(server.folder)}) as client:
        yield client


@pytest.fixture
def node(server: EmepServer) -> Iterator[str]:
    """A node with two GPUs; nothing of these tests is left on it."""
    gpus = [GpuReport(index=i, uuid=f"SIM-op-{i}", gpu_type="T4", gpu_memory=16 << 30) for i in range(2)]
    with EmepClient(server.url, agent_token(AGENT_SECRET)) as agent:
        agent.register_node(NodeRequest(name="op1", cpu=8, memory=64 << 30, gpus=gpus, pool="idle"))
        yield "op1"


def test_a_gpu_and_a_node_are_drained_and_resumed(server: EmepServer, node: str, emep: Emep) -> None:
    admin = server.environment()
    one = emep("drain", f"{node}:1", "--reason", "noisy", environment=admin)
    assert (one.returncode, one.stdout, one.stderr) == (0, f"{node}:1 is drained\n", "")
    whole = emep("drain", node, "--now", "--json", environment=admin)
    assert json.loads(whole.stdout)["state"] == "drained"
    table = emep("nodes", environment=admin).stdout
    line = next(line for line in table.splitlines() if line.startswith(f"{node} "))
    assert line.split()[1] == "drained"
    back = emep("resume", node, environment=admin)
    assert back.stdout == f"{node} is up; drained by themselves: {node}:1\n"
    assert "noisy" in emep("nodes", node, environment=admin).stdout
    assert emep("resume", f"{node}:1", environment=admin).stdout == f"{node}:1 is healthy\n"


def test_a_weight_is_set_shown_and_unset(server: EmepServer, emep: Emep) -> None:
    admin = server.environment()
    done = emep("share", "set", "queue:merge", "5", "--reason", "deadline", environment=admin)
    assert (done.returncode, done.stdout) == (0, "queue:merge has weight 5, set by admin\n")
    shown = emep("share", "--queue", "merge", environment=admin).stdout
    head, first, *_ = shown.splitlines()
    assert head.split()[:4] == ["ENTITY", "WEIGHT", "FILE", "SHARE"]
    assert first.split()[:2] == ["queue:merge", "5"]
    assert "queue:merge has weight 5 by admin: deadline" in shown
    document = json.loads(emep("share", "--json", environment=admin).stdout)
    assert document["overrides"][0]["entity"] == "queue:merge"
    assert emep("share", "unset", "queue:merge", environment=admin).returncode == 0
    again = emep("share", "unset", "queue:merge", environment=admin)
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (1, "", 1)


def test_a_job_that_was_cancelled_is_in_the_history_and_can_be_requeued(
    server: EmepServer, client: EmepClient, emep: Emep
) -> None:
    admin = server.environment()
    job = client.submit_job(JobRequest(spec=SPEC, gpu_count=0, cpu=0.5, project="past"))
    client.cancel(job.id, "by mistake")
    table = emep("history", "--project", "past", environment=admin).stdout
    assert job.id in table
    assert "by mistake" in table
    items = json.loads(emep("history", "--project", "past", "--json", environment=admin).stdout)["items"]
    assert [one["id"] for one in items] == [job.id]
    done = emep("requeue", job.id, "--reason", "it was none", environment=admin)
    assert (done.returncode, done.stdout) == (0, f"job {job.id} is pending\n")
    twice = emep("requeue", job.id, environment=admin)
    assert twice.returncode == 1
    assert "pending already" in twice.stderr or "starting" in twice.stderr
    client.cancel(job.id)


def test_dead_letters_that_are_not_there(server: EmepServer, emep: Emep) -> None:
    admin = server.environment()
    assert emep("dlq", "list", environment=admin).stdout == "no dead letters\n"
    assert json.loads(emep("dlq", "list", "--json", environment=admin).stdout) == {"items": [], "total": 0}
    for action in ("requeue", "discard"):
        done = emep("dlq", action, "nosuch", "--reason", "x", environment=admin)
        assert (done.returncode, done.stdout) == (1, "")
        assert "no dead letter 'nosuch'" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["drain"], ["drain", "n:x"], ["drain", ":1"], ["resume", "n:-1"], ["requeue"], ["dlq"],
        ["dlq", "forget", "j"], ["share", "set", "queue:merge", "lots"], ["history", "--limit", "x"],
        ["share", "set", "queue:merge", "-1"], ["share", "set", "queue:merge"],
        ["share", "set", "queue:merge", "nan"], ["queue", "--limit", "0"], ["queue", "--limit", "-1"],
        ["dlq", "list", "--limit", "0"], ["queue", "--state", "nonsense"], ["history", "--state", "done"],
    ],
)  # fmt: skip
def test_wrong_use_is_exit_2_on_standard_error(emep: Emep, arguments: list[str]) -> None:
    done = emep(*arguments, environment={"EMEP_TOKEN": "t", "EMEP_API_URL": "http://127.0.0.1:9"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_one_who_may_only_read_changes_nothing(server: EmepServer, node: str, emep: Emep) -> None:
    viewer = server.environment("viewer")
    for command in (["drain", node], ["resume", node], ["share", "set", "queue:merge", "2"]):
        done = emep(*command, environment=viewer)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert "viewer may not" in done.stderr
    for command in READ:
        assert emep(*command.split(), environment=viewer).returncode == 0, command


@pytest.mark.parametrize("command", READ)
def test_read_commands_print_json_that_programs_can_read(
    server: EmepServer, node: str, emep: Emep, command: str
) -> None:
    done = emep(*command.split(), "--json", environment=server.environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(json.loads(done.stdout), dict)


def test_every_command_explains_itself(emep: Emep) -> None:
    listing = emep("--help").stdout
    for name in ("share", "history", "requeue", "drain", "resume", "dlq"):
        assert name in listing
        assert emep(name, "--help").returncode == 0


def test_read_commands_import_no_airflow() -> None:
    modules = [f"emep.cli.commands.{command.split()[0]}" for command in [*READ, "explain"]]
    code = (
        f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
        "import emep.client\n"
        "print([m for m in ('airflow', 'sqlalchemy', 'fastapi', 'pydantic', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout == "[]\n"
