"""The pod trigger as a triggerer stores it, and what it costs to import; its work is in tests/kubernetes."""

from __future__ import annotations

import subprocess
import sys

from emep.kubernetes.manifest import PodPlan
from emep.kubernetes.pod_store import PodStore
from emep.triggers.pod import PodTrigger


def test_it_is_made_anew_from_what_it_says():
    plan = PodPlan({"metadata": {"name": "p"}, "spec": {}}, supervised=True, startup_timeout=5.0)
    trigger = PodTrigger(
        job_id="j", conn_id="c", deferred_at=1.0, plan=plan.to_dict(), cluster={"conn_id": "k"}, mapped=True
    )
    path, arguments = trigger.serialize()
    assert path == f"{PodTrigger.__module__}.{PodTrigger.__qualname__}"
    assert PodTrigger(**arguments).serialize() == (path, arguments)
    assert PodPlan(**arguments["plan"]) == plan


def test_importing_it_loads_no_kubernetes():
    code = (
        "import sys, emep.triggers.pod, emep.kubernetes.watch\n"
        "print([name for name in ('kubernetes', 'kubernetes_asyncio', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]"), done.stdout


def pod(name: str, job: str, uid: str = "1", **more: str) -> dict:
    labels = {"emep/job": job, "emep/allocation": f"{job}-1", "emep/epoch": "1"}
    return {"metadata": {"name": name, "uid": uid, "labels": labels}, "status": more}


def test_the_store_knows_pods_by_job_and_remembers_how_they_left():
    store = PodStore()
    store.replace([pod("a", "j"), pod("b", "k")])
    store.add(pod("c", "j"))
    assert [one["metadata"]["name"] for one in store.of_job("j")] in (["a", "c"], ["c", "a"])
    store.add(pod("a", "j", phase="older"))
    assert store.pods["a"]["status"] == {}
    store.remove(pod("a", "j", phase="Failed"))
    assert [one["metadata"]["name"] for one in store.of_job("j")] == ["c"]
    assert store.departed["a"]["status"] == {"phase": "Failed"}
    assert [one["metadata"]["name"] for one in store.replace([pod("b", "k")])] == ["c"]
    assert store.of_job("j") == []
