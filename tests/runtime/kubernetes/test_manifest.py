"""Manifests against golden files: what EMEP adds to a user's pod, and what it leaves as it is.

``EMEP_WRITE_GOLDEN=1`` writes them anew; the difference is then a change of what users' clusters get.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from emep.kubernetes.manifest import (
    MAX_SPEC_BYTES,
    PodPlan,
    build_pod,
    build_secret,
    is_gated,
    pinned,
    pod_name,
    ungated,
)
from emep.wire.jobs import GpuRef
from emep.wire.leases import LeaseAnswer

GOLDEN = Path(__file__).parents[2] / "kubernetes" / "golden"
JOB, ALLOCATION = "1m8mtjm5s7zrs6a5", "1m8mtjm5s7zrs6a5-3"


def lease(gpus: int = 2, **fields: Any) -> LeaseAnswer:
    values: dict[str, Any] = {
        "job_id": JOB,
        "epoch": 3,
        "lease_token": "emep-lease.0123abcd",
        "started": False,
        "environment": {
            "EMEP_JOB_ID": JOB,
            "EMEP_ALLOCATION_ID": ALLOCATION,
            "EMEP_LEASE_EPOCH": "3",
            "EMEP_CHECKPOINT_URI": "s3://bucket/checkpoints/x",
            "TRACEPARENT": "00-a-b-01",
        },
        "nodes": ["gpu-1"],
        "gpus": [GpuRef(node="gpu-1", index=index, uuid=f"GPU-{index}") for index in range(gpus)],
        "gpu_count": gpus,
        "spec": {"engine": "merge", "input": {"seed": 1}},
        "max_duration": 3600.0,
        "start_deadline": 600.0,
        "grace": 120.0,
        "grace_left": None,
        "heartbeat": 10.0,
        "max_silence": 600.0,
        "deadline": None,
    }
    return LeaseAnswer(**{**values, **fields})


def plan(**fields: Any) -> PodPlan:
    pod = {
        "metadata": {"name": "train", "namespace": "emep", "labels": {"team": "a"}},
        "spec": {"containers": [{"name": "base", "image": "train:1", "command": ["train"]}]},
    }
    return PodPlan(**{"pod": pod, "api_url": "http://emep:8080/emep/api/v1", **fields})


def rich() -> PodPlan:
    """A pod that has something everywhere EMEP adds something."""
    required = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
    ]
    return plan(
        pod={
            "metadata": {
                "name": "Fine_Tuning of a model with a very long name that does not fit",
                "namespace": "emep",
                "labels": {"team": "a", "emep/job": "forged"},
                "annotations": {"note": "mine"},
            },
            "spec": {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": required},
                        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
                    },
                    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
                },
                "activeDeadlineSeconds": 99999,
                "terminationGracePeriodSeconds": 30,
                "serviceAccountName": "trainer",
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "schedulingGates": [{"name": "other"}],
                "volumes": [{"name": "data", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "base",
                        "image": "emep/engines:1",
                        "command": ["emep-engine"],
                        "args": ["run", "/emep/spec/spec.json"],
                        "env": [
                            {"name": "MINE", "value": "1"},
                            {"name": "EMEP_LEASE_TOKEN", "value": "forged"},
                            {"name": "EMEP_CHECKPOINT_URI", "value": "file:///data"},
                        ],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "resources": {
                            "limits": {"nvidia.com/gpu": "8", "memory": "4Gi"},
                            "requests": {"nvidia.com/gpu": "8", "cpu": "1"},
                        },
                    },
                    {"name": "sidecar", "image": "side:1"},
                ],
            },
        },
        supervised=True,
        has_spec=True,
        keep="keep_pod",
    )


CASES = {
    "plain": (plan(result_as_message=True), lease()),
    "cpu": (plan(), lease(gpus=0, max_duration=None)),
    "engine": (rich(), lease()),
    "amd": (plan(gpu_resource="amd.com/gpu"), lease(gpus=1)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_pod_is_the_golden_one(name: str) -> None:
    given, granted = CASES[name]
    built = [
        build_pod(given, JOB, ALLOCATION, granted),
        build_secret(given, JOB, ALLOCATION, granted, "uid-of-the-pod"),
    ]
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("EMEP_WRITE_GOLDEN"):
        file.write_text(yaml.safe_dump_all(built, sort_keys=True))
    assert built == list(yaml.safe_load_all(file.read_text()))


@pytest.mark.parametrize("name", CASES)
def test_no_token_is_in_the_pod(name: str) -> None:
    given, granted = CASES[name]
    assert "0123abcd" not in str(build_pod(given, JOB, ALLOCATION, granted))
    assert "0123abcd" not in str(given.to_dict())


def test_every_epoch_has_its_own_name_and_it_is_a_valid_one() -> None:
    for given in (plan(), rich(), plan(pod={"metadata": {"name": "___"}, "spec": {}}), plan(pod={})):
        names = {pod_name(given, JOB, epoch) for epoch in (1, 2, 1_000_000)}
        assert len(names) == 3
        for name in names:
            assert len(name) <= 63
            assert name[0].isalnum()
            assert name.replace("-", "").isalnum()
            assert name == name.lower()


def test_the_pin_goes_into_every_alternative() -> None:
    terms = [{"matchExpressions": [1]}, {"matchExpressions": [2], "matchFields": [3]}]
    before = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    after = pinned(before, "n")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    pin = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    assert after["nodeSelectorTerms"] == [
        {"matchExpressions": [1], "matchFields": [pin]},
        {"matchExpressions": [2], "matchFields": [3, pin]},
    ]
    assert "matchFields" not in terms[0]


def test_the_gate_is_taken_away_and_those_of_others_are_not() -> None:
    pod = build_pod(rich(), JOB, ALLOCATION, lease())
    assert is_gated(pod)
    assert ungated(pod) == {"spec": {"schedulingGates": [{"name": "other"}]}}
    pod["spec"]["schedulingGates"] = ungated(pod)["spec"]["schedulingGates"]
    assert not is_gated(pod)
    assert ungated(build_pod(plan(), JOB, ALLOCATION, lease())) == {"spec": {"schedulingGates": None}}


def test_a_spec_that_no_secret_holds_is_refused_by_its_size() -> None:
    large = lease(spec={"input": "x" * MAX_SPEC_BYTES})
    with pytest.raises(ValueError, match="the SPEC has 1,000,0"):
        build_secret(rich(), JOB, ALLOCATION, large, "u")


def test_a_pod_without_its_base_container_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no container 'main'"):
        build_pod(plan(base_container="main"), JOB, ALLOCATION, lease())


def test_a_pods_own_environment_does_not_move_its_confines() -> None:
    granted = lease(environment={"EMEP_CONFINES": "granted", "EMEP_ARTIFACT_URI": "file:///data"})
    own = plan(
        pod={"spec": {"containers": [{"name": "base", "env": [{"name": "EMEP_CONFINES", "value": "own"}]}]}}
    )
    (base,) = build_pod(own, JOB, ALLOCATION, granted)["spec"]["containers"]
    assert [entry["value"] for entry in base["env"] if entry["name"] == "EMEP_CONFINES"] == ["granted"]
