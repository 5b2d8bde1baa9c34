"""Pods on a real cluster for tests: EMEP's API, an agent for each node that only reports, and the trigger.

``PodBench`` plays Airflow's part around the trigger: it submits the job, drives the trigger in the test's own
loop, and keeps what the trigger would have sent to Airflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.builders.emep_server import AGENT_SECRET, POLICY_FILE, USERS, EmepServer
from tests.cluster import pods
from tests.cluster.settings import HOST_ROOT_IMAGE
from tests.cluster.target import Target

from emep.client import EmepClient
from emep.client.config import settings as client_settings
from emep.kubernetes.manifest import PodPlan
from emep.triggers.pod import PodTrigger
from emep.wire.base import ENDED_STATES
from emep.wire.jobs import JobRequest, JobView

PROJECT = Path(__file__).resolve().parents[2]
POLICY = """\
preemption: {grace_period: 8s}
lease: {heartbeat: 2s, expiry: 15s, start_deadline: 2m}
retries: {backoff: 1s}
"""
TASK = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, id="i", try_number=1)


class Kubectl:
    """The cluster's own view, with every right."""

    def __init__(self, target: Target) -> None:
        self.target, self.core, self.namespace = target, target.core, target.namespace

    def nodes(self) -> list[str]:
        """Names of nodes that have GPUs."""
        return [
            node.metadata.name
            for node in self.core.list_node().items
            if "nvidia.com/gpu" in (node.status.allocatable or {})
        ]

    def pods(self, job_id: str | None = None) -> list[Any]:
        """EMEP's pods, of one job or of all."""
        return list(self.core.list_namespaced_pod(self.namespace, label_selector=_selector(job_id)).items)

    def secrets(self, job_id: str | None = None) -> list[Any]:
        return list(self.core.list_namespaced_secret(self.namespace, label_selector=_selector(job_id)).items)

    def delete(self, name: str, grace: int | None = None) -> None:
        self.core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=grace)


def _selector(job_id: str | None) -> str:
    return f"emep/job={job_id}" if job_id else "emep/job"


class PodBench:
    """Server, agents, cluster."""

    def __init__(self, server: EmepServer, kubectl: Kubectl, nodes: list[str]) -> None:
        self.server, self.kubectl, self.nodes = server, kubectl, nodes
        self.submitted: list[str] = []
        self.user = EmepClient(client_settings(server.url, username="admin", password=USERS["admin"]))

    @property
    def emep_connection(self) -> str:
        fields = {"conn_type": "http", "host": "127.0.0.1", "schema": "http", "port": self.server.port}
        return json.dumps({**fields, "login": "admin", "password": USERS["admin"]})

    def submit(self, **fields: Any) -> str:
        """A pod's job."""
        fields.setdefault("gpu_count", 1)
        job_id = self.user.submit_job(JobRequest(runtime="kubernetes", **fields)).id
        self.submitted.append(job_id)
        return job_id

    def plan(self, command: str | None = None, **fields: Any) -> PodPlan:
        """A pod that runs a shell command."""
        container = {
            "name": "base",
            "image": self.kubectl.target.image,
            "command": ["sh", "-c", command or "echo hello"],
        }
        spec = {"containers": [container], "hostNetwork": True, **fields.pop("spec", {})}
        metadata = {"name": "test", "namespace": self.kubectl.namespace, "labels": {"mine": "yes"}}
        pod = {"metadata": metadata, "spec": spec}
        return PodPlan(**{"pod": pod, "api_url": f"{self.server.url}/emep/api/v1", **fields})

    def engine_plan(
        self, site: Path | None = None, more: dict[str, str] | None = None, **fields: Any
    ) -> PodPlan:
        """A pod that runs ``emep-engine`` of this environment, from the host's own files."""
        folder = str(self.server.folder)
        mounts = [*pods.host_root_mounts(), pods.Mount("data", folder, writable=True)]
        plan = self.plan(spec={"volumes": pods.volumes(mounts)}, has_spec=True, supervised=True, **fields)
        environment = pods.python_environment() | more
        environment["PYTHONPATH"] = f"{site}:{PROJECT}:{environment['PYTHONPATH']}"
        plan.pod["spec"]["containers"][0].update(
            image=HOST_ROOT_IMAGE,
            command=[sys.executable, "-m", "engines.cli", "run", "/emep/spec/spec.json"],
            volumeMounts=pods.volume_mounts(mounts),
            env=[{"name": name, "value": value} for name, value in environment.items()],
        )
        return plan

    def trigger(self, job_id: str, plan: PodPlan, **fields: Any) -> PodTrigger:
        """The trigger of a job, as a triggerer makes it."""
        cluster = fields.pop("cluster", {"conn_id": "kubernetes_default"})
        trigger = PodTrigger(
            job_id=job_id,
            conn_id="emep_default",
            deferred_at=time.time() - 3600,
            plan=plan.to_dict(),
            cluster=cluster,
            **fields,
        )
        trigger.task_instance = TASK  # type: ignore[assignment]
        return trigger

    def restart(self) -> None:
        """Kill EMEP's API and start it again on its data."""
        self.server.stop()
        os.environ[POLICY_FILE] = str(self.server.folder / "policy.yaml")
        try:
            self.server.start()
        finally:
            del os.environ[POLICY_FILE]

    def job(self, job_id: str) -> JobView:
        return self.user.job(job_id)

    async def until(self, condition: Any, seconds: float = 60.0) -> Any:
        """Wait for something in cluster or ledger that nobody announces to the test."""
        async with asyncio.timeout(seconds):
            while not (value := await asyncio.to_thread(condition)):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.1)
        return value

    async def state(self, job_id: str, *states: str, epoch: int = 0, seconds: float = 90.0) -> JobView:
        def reached() -> JobView | None:
            job = self.job(job_id)
            assert job.state.value in states or job.state not in ENDED_STATES, job.reason
            return job if job.state.value in states and job.epoch >= epoch else None

        found: JobView = await self.until(reached, seconds)
        return found

    def log(self, job: JobView, epoch: int | None = None) -> str:
        """The log of an epoch, as the ledger has it."""
        return self.user.logs(f"{job.id}-{epoch or job.epoch}").text

    def held(self) -> list[tuple[str, int]]:
        """GPUs that some job holds."""
        nodes = self.user.nodes().items
        return [(node["name"], gpu["index"]) for node in nodes for gpu in node["gpus"] if gpu["job_id"]]

    def events(self, job_id: str) -> list[str]:
        """What the audit says of a job."""
        import sqlite3

        with contextlib.closing(sqlite3.connect(self.server.folder / "emep.db")) as connection:
            rows = connection.execute("select event from emep_event where job_id=? order by id", (job_id,))
            return [row[0] for row in rows]


async def event_of(trigger: PodTrigger, seconds: float = 180.0) -> Any:
    """The one event that the trigger fires."""
    async with asyncio.timeout(seconds):
        async for event in trigger.run():
            return event
    raise AssertionError("no event")


@contextlib.contextmanager
def pod_bench(folder: Path, target: Target, gpus: int = 2) -> Iterator[PodBench]:
    """Server and agents while the block lasts; every node of the cluster has so many GPUs for EMEP."""
    folder.mkdir(parents=True, exist_ok=True)
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    os.environ[POLICY_FILE] = str(policy)
    server = EmepServer(folder)
    try:
        server.start()
    finally:
        del os.environ[POLICY_FILE]
    kubectl = Kubectl(target)
    agents: list[subprocess.Popen[bytes]] = []
    try:
        nodes = kubectl.nodes()
        for node in nodes:
            agents.append(start_agent(server, folder, node, gpus))
        bench = PodBench(server, kubectl, nodes)
        until = time.monotonic() + 60
        while len(bench.user.nodes().items) < len(nodes):
            assert time.monotonic() < until, (folder / f"agent-{nodes[0]}.log").read_text()
            time.sleep(0.1)
        try:
            yield bench
        finally:
            bench.user.close()
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait(20)
        server.stop()


def start_agent(server: EmepServer, folder: Path, node: str, gpus: int) -> subprocess.Popen[bytes]:
    """The agent of a node, as its DaemonSet's pod runs it."""
    arguments = ["agent", "--report-only", "--name", node, "--simulate", str(gpus), "--group-size", str(gpus)]
    arguments += [
        "--label",
        f"own={node}",
        "--cpu",
        "8",
        "--memory",
        "32Gi",
        "--state-dir",
        str(folder / f"agent-{node}"),
    ]
    with (folder / f"agent-{node}.log").open("wb") as output:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("emep")), *arguments],
            env={**os.environ, "EMEP_API_URL": server.url, "EMEP_AGENT_TOKEN": AGENT_SECRET},
            stdout=output,
            stderr=output,
        )
