"""queue, nodes, explain, logs and cancel against the real API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from tests.builders.emep_server import AGENT_SECRET, EmepServer
from tests.cli.conftest import Emep

from emep.client import EmepClient, agent_token, lease_token
from emep.wire.allocations import Completion, Heartbeat
from emep.wire.jobs import JobRequest, JobView
from emep.wire.nodes import GpuReport, NodeRequest, PollRequest, RunningAllocation, StartOrder

SPEC = {"schema_version": 1, "engine": "evolve_candidates", "input": {}, "output_uri": "none"}


@pytest.fixture
def client(server: EmepServer) -> Iterator[EmepClient]:
    with EmepClient.from_environment({**server.environment(), "HOME": str(server.folder)}) as client:
        yield client


@pytest.fixture
def order(server: EmepServer, client: EmepClient) -> Iterator[Callable[[JobView], StartOrder]]:
    """A node with two linked GPUs whose agent is this test; gives the start order of a job."""
    gpus = [
        GpuReport(
            index=i, uuid=f"SIM-cli-{i}", gpu_type="T4", gpu_memory=16 << 30, nvlink_group_id="cli/nvlink-0"
        )
        for i in range(2)
    ]
    with EmepClient(server.url, agent_token(AGENT_SECRET)) as agent:
        agent.register_node(NodeRequest(name="cli", cpu=8, memory=64 << 30, gpus=gpus))

        def wait(job: JobView) -> StartOrder:
            for _ in range(10):
                for order in agent.poll("cli", PollRequest(timeout=10)).orders:
                    if isinstance(order, StartOrder) and order.job_id == job.id:
                        running = [RunningAllocation(allocation_id=order.allocation_id, epoch=order.epoch)]
                        agent.poll("cli", PollRequest(running=running, timeout=0))
                        return order
            raise AssertionError(f"no order for {job.id}: {client.job(job.id).reason}")

        yield wait
        for job in client.jobs(["pending", "starting", "running", "yielding"]).items:
            client.cancel(job["id"])
        agent.poll("cli", PollRequest(timeout=0))


def test_the_nodes_name_external_work_that_is_over_and_not_called_gone(
    server: EmepServer, client: EmepClient, order: Callable[[JobView], StartOrder], emep: Emep
) -> None:
    job = client.submit_job(JobRequest(runtime="external", gpu_count=2))
    while (allocation := client.job(job.id).allocation_id) is None:
        time.sleep(0.05)
    client.lease(allocation)
    client.cancel(job.id)
    said = emep("nodes", environment=server.environment()).stdout
    assert f"2 GPUs of cli held by allocation {allocation} of job {job.id} (runtime external)" in said
    client.gone(allocation)
    assert "held by" not in emep("nodes", environment=server.environment()).stdout


def test_the_queue_shows_what_runs_before_what_waits(
    server: EmepServer, client: EmepClient, order: Callable[[JobView], StartOrder], emep: Emep
) -> None:
    runs = client.submit_job(JobRequest(spec=SPEC, gpu_count=2, project="team-a"))
    granted = order(runs)
    with EmepClient(server.url, lease_token(granted.lease_token)) as holder:
        beat = Heartbeat(epoch=granted.epoch)
        holder.heartbeat(granted.allocation_id, beat)
        waits = client.submit_job(JobRequest(spec=SPEC, gpu_count=1))
        done = emep("queue", environment=server.environment())
        assert (done.returncode, done.stderr) == (0, "")
        head, first, second = done.stdout.splitlines()
        assert head.split()[:8] == ["JOB", "STATE", "GPUS", "WHERE", "CLASS", "QUEUE", "PROJECT", "USER"]
        assert first.split()[:8] == [runs.id, "running", "2", "cli:0-1", "normal", "merge", "team-a", "admin"]
        assert second.split()[:4] == [waits.id, "pending", "1", "-"]

        document = json.loads(emep("queue", "--json", environment=server.environment()).stdout)
        assert document["total"] == 2
        assert {job["id"] for job in document["items"]} == {runs.id, waits.id}
        only = json.loads(
            emep("queue", "--project", "team-a", "--json", environment=server.environment()).stdout
        )
        assert [job["id"] for job in only["items"]] == [runs.id]

        holder.heartbeat(granted.allocation_id, beat)  # command lines take seconds on a loaded machine
        nodes = emep("nodes", environment=server.environment())
        line = next(line for line in nodes.stdout.splitlines() if line.startswith("cli "))
        assert "2 T4" in line
        assert "nvlink-0: none of 2" in line
        gpus = emep("nodes", "cli", environment=server.environment()).stdout
        assert gpus.count(runs.id) == 2

        holder.heartbeat(granted.allocation_id, beat)
        why = emep("explain", waits.id, environment=server.environment())
        assert why.returncode == 0
        assert "insufficient_gpus" in why.stdout
        where = emep("explain", runs.id, environment=server.environment())
        assert where.stdout == f"Job {runs.id} is running on cli.\n"
        assert "score:" in why.stdout
        assert json.loads(emep("explain", waits.id, "--json", environment=server.environment()).stdout)[
            "reasons"
        ]

        holder.heartbeat(granted.allocation_id, beat)
        holder.append_logs(granted.allocation_id, 0, b"first line\n", final=True)
        holder.complete(granted.allocation_id, Completion(epoch=granted.epoch, exit_code=0))
        assert emep("logs", runs.id, "--follow", environment=server.environment()).stdout == "first line\n"


def test_an_unknown_queue_is_wrong_use_that_names_those_there_are(server: EmepServer, emep: Emep) -> None:
    for more in ([], ["--json"]):
        done = emep("queue", "--queue", "megre", *more, environment=server.environment("viewer"))
        assert (done.returncode, done.stdout) == (2, "")
        known = "artifact, eval, inference, merge, tracker"
        assert done.stderr == f"emep: --queue: there is no queue 'megre'; there are {known}\n"
    empty = emep("queue", "--queue", "merge", environment=server.environment("viewer"))
    assert (empty.returncode, empty.stdout) == (0, "no job waits or runs\n")


def test_cancel_says_what_becomes_of_the_job(server: EmepServer, client: EmepClient, emep: Emep) -> None:
    job = client.submit_job(JobRequest(spec=SPEC, gpu_count=0, cpu=0.5))
    done = emep("cancel", job.id, "--reason", "a mistake", environment=server.environment())
    assert (done.returncode, done.stdout) == (0, f"job {job.id} is cancelled\n")
    assert client.job(job.id).reason == "a mistake"


def test_what_is_not_there_is_said_on_standard_error(server: EmepServer, emep: Emep) -> None:
    for command in (["explain", "nobody"], ["cancel", "nobody"], ["logs", "nobody"], ["nodes", "nobody"]):
        done = emep(*command, environment=server.environment())
        assert (done.returncode, done.stdout) == (1, ""), command
        assert done.stderr.startswith("emep: ")
        assert "nobody" in done.stderr
        assert done.stderr.count("\n") == 1


def test_one_who_may_only_read_cannot_cancel(server: EmepServer, client: EmepClient, emep: Emep) -> None:
    job = client.submit_job(JobRequest(spec=SPEC, gpu_count=0, cpu=0.5))
    assert emep("queue", environment=server.environment("viewer")).returncode == 0
    done = emep("cancel", job.id, environment=server.environment("viewer"))
    assert done.returncode == 1
    assert "viewer may not" in done.stderr
    client.cancel(job.id)


def test_a_wrong_password_and_no_credentials_are_one_sentence_each(server: EmepServer, emep: Emep) -> None:
    wrong = emep("queue", environment={**server.environment(), "EMEP_PASSWORD": "guess"})
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == (
        f"emep: {server.url}/auth/token refused user 'admin': check the user name and the password\n"
    )
    none = emep("queue", environment={"EMEP_API_URL": server.url})
    assert none.returncode == 1
    assert none.stderr.startswith("emep: ")
    assert "EMEP_USERNAME and EMEP_PASSWORD" in none.stderr


def test_nobody_there_is_one_sentence(emep: Emep) -> None:
    done = emep("queue", "--api-url", "http://127.0.0.1:9", environment={"EMEP_TOKEN": "t"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "emep: no connection to http://127.0.0.1:9/emep/api/v1 (connection refused): "
        "is the API server running there?\n"
    )


def test_a_wrong_url_is_wrong_use(emep: Emep) -> None:
    done = emep("queue", "--api-url", "localhost:8080")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
