"""Figures of pods: ``EMEP_TEST_KUBECONFIG=.. python -m tests.benchmarks.kubernetes.measure [NAME ..]``.

The pods write down the machine's uptime when their process starts and ends, so the figures are those of the
work itself; all of a test cluster's nodes are one machine. The trigger runs in this process, as in a
triggerer, against EMEP's API server in a process of its own. Nothing is asserted here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.command import run_measures
from tests.builders.inbox import Inbox
from tests.builders.pods import PodBench, event_of, pod_bench
from tests.cluster.target import Target, given

CHAIN = 12
"""Pods on each node, one after the other; each needs all of the node's GPUs."""
TRIES = 6
NOTE = "read up _ < /proc/uptime; echo began $up; sleep {seconds}; read up _ < /proc/uptime; echo ended $up"


def uptime() -> float:
    """Seconds since the machine's start, as the pods read them."""
    return float(Path("/proc/uptime").read_text().split()[0])


def say(name: str, values: list[float], limit: str) -> None:
    """Median and spread of a figure beside its limit."""
    low, middle, high = min(values), statistics.median(values), max(values)
    load = os.getloadavg()[0]
    spread = f"{low:.2f} to {high:.2f}, n={len(values)}"
    print(f"{name:42} median {middle:6.2f} s  ({spread})  {limit}; load {load:.1f}", flush=True)


def times(log: str) -> dict[str, float]:
    """What a pod has written down."""
    return {word: float(value) for word, value in (line.split() for line in log.splitlines())}


async def idle(bench: PodBench) -> None:
    """GPU idle in a full queue: from one pod's process end to the next one's process start on its node."""
    jobs = [bench.submit(gpu_count=2, max_duration="10m") for _ in range(CHAIN * len(bench.nodes))]
    plan = bench.plan(NOTE.format(seconds=3))
    await asyncio.gather(*(event_of(bench.trigger(job, plan, push_result=False), 1800) for job in jobs))
    runs: dict[str, list[tuple[float, float]]] = {}
    for job_id in jobs:
        job = bench.job(job_id)
        assert (job.state.value, job.epoch) == ("completed", 1), job.reason
        found = times(bench.log(job))
        runs.setdefault(job.nodes[0], []).append((found["began"], found["ended"]))
    gaps = []
    for chain in runs.values():
        chain.sort()
        gaps += [after[0] - before[1] for before, after in itertools.pairwise(chain)]
    say("idle between two pods", gaps, "limit 2.5 s, floor of this kind of cluster 1.8 to 2.1 s")


async def start(bench: PodBench) -> None:
    """From the request to the running process on an idle cluster, against a pod that is created as it is and
    against the provider's own operator; the four take turns."""
    from tests.benchmarks.kubernetes.operators import by_emep, by_provider

    ours, bare, operators, providers = [], [], [], []
    script = NOTE.format(seconds=1)
    # A worker has its modules by then.
    await by_provider(bench, script, TRIES)
    await by_emep(bench, script, TRIES)
    for number in range(TRIES):
        for run, values in ((by_provider, providers), (by_emep, operators)):
            began = uptime()
            values.append(times(await run(bench, script, number))["began"] - began)
        began = uptime()
        pod = _bare(bench, f"bare-{os.getpid()}-{number}")
        await asyncio.to_thread(bench.kubectl.core.create_namespaced_pod, bench.kubectl.namespace, pod)
        bare.append(times(await _log_of(bench, pod["metadata"]["name"]))["began"] - began)
        began = uptime()
        job_id = bench.submit(gpu_count=1)
        await event_of(bench.trigger(job_id, bench.plan(script), push_result=False))
        ours.append(times(bench.log(bench.job(job_id)))["began"] - began)
    say("request to process, bare pod", bare, "")
    say("request to process, by EMEP", ours, "limit 1 s more than KubernetesPodOperator")
    say("execute to process, KubernetesPodOperator", providers, "")
    say("execute to process, EMEP's operator", operators, "limit 1 s more than KubernetesPodOperator")


def _bare(bench: PodBench, name: str) -> dict[str, Any]:
    pod = bench.plan(NOTE.format(seconds=1)).pod
    pod["metadata"]["name"] = name
    pod["spec"] |= {"restartPolicy": "Never"}
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return pod


async def _log_of(bench: PodBench, name: str) -> str:
    from tests.cluster.access import logs

    core, namespace = bench.kubectl.core, bench.kubectl.namespace
    await bench.until(lambda: core.read_namespaced_pod(name, namespace).status.phase == "Succeeded")
    text = await asyncio.to_thread(logs, core, name, namespace)
    await asyncio.to_thread(bench.kubectl.delete, name, 0)
    return text


async def _measured(bench: PodBench, measure: Any) -> None:
    from emep.hooks.job_watch import Hub

    # One job that is looked at from beginning to end: a triggerer has its modules and connections by then.
    hub = await Hub.get("emep_default")
    async with hub.subscribe("none"):
        await event_of(bench.trigger(bench.submit(), bench.plan(), push_result=False))
        began = time.monotonic()
        await measure(bench)
        print(f"  ({time.monotonic() - began:.0f} s)")


def _with_cluster(measure: Any) -> None:
    from airflow.sdk.execution_time import task_runner

    task_runner.SUPERVISOR_COMMS = Inbox()  # type: ignore[assignment]
    target: Target = given(Path(os.environ["EMEP_TEST_KUBECONFIG"]))
    extra = {"kube_config_path": str(target.emep_kubeconfig)}
    connection = json.dumps({"conn_type": "kubernetes", "extra": extra})
    os.environ["AIRFLOW_CONN_KUBERNETES_DEFAULT"] = connection
    with tempfile.TemporaryDirectory(prefix="emep-pods-") as folder, pod_bench(Path(folder), target) as bench:
        os.environ["AIRFLOW_CONN_EMEP_DEFAULT"] = bench.emep_connection
        asyncio.run(_measured(bench, measure))


def measure_idle() -> None:
    """GPU idle in a full queue."""
    _with_cluster(idle)


def measure_start() -> None:
    """Submit to running pod on an idle cluster."""
    _with_cluster(start)


if __name__ == "__main__":
    raise SystemExit(run_measures({"idle": measure_idle, "start": measure_start}, sys.argv[1:]))
