"""Builds a pod's manifests from the pod that the operator rendered and a lease. Pure functions.

The user's own labels, sidecars, volumes and affinities stay as they are. What EMEP adds says who the pod
belongs to, pins it to the granted node, limits its GPUs, and gives it the lease by a Secret of its own.
"""

from __future__ import annotations

import base64
import copy
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emep.wire.leases import LeaseAnswer

JOB, EPOCH, ALLOCATION = "emep/job", "emep/epoch", "emep/allocation"
"""Labels of every pod and Secret of EMEP's."""
TOKEN_KEY, SPEC_KEY = "token", "spec.json"
SPEC_FOLDER, RUN_FOLDER = "/emep/spec", "/emep/run"
XCOM_PATH = "/airflow/xcom/return.json"
MESSAGE_PATH = "/dev/termination-log"
"""Kubernetes' own default."""
LOG_OF = "emep/log-of"
"""Annotation: the container whose log is kept, where it is not ``base``; empty: none."""
GATE = "emep/lease"
"""The pod is not scheduled before its Secret is there, which needs the pod as its owner."""
MAX_SPEC_BYTES = 1_000_000
"""A Secret holds 1 MiB at most, its token included."""
LEASE_PREFIX = "emep-lease."
NAME_LENGTH = 63
VISIBLE = {"nvidia.com/gpu": "CUDA_VISIBLE_DEVICES", "amd.com/gpu": "HIP_VISIBLE_DEVICES"}
PLACES = frozenset({"EMEP_API_URL", "EMEP_CHECKPOINT_URI", "EMEP_ARTIFACT_URI", "EMEP_TRACKER_URI"})
"""Paths may differ inside a pod, so the user's own values of these variables are kept."""


@dataclass(frozen=True)
class PodPlan:
    """The rendered pod and what the trigger must know to start it. It contains no secret."""

    pod: dict[str, Any]
    base_container: str = "base"
    api_url: str = ""
    """EMEP's API as pods reach it."""
    supervised: bool = False
    """Its image renews the lease by itself (``emep-engine run``)."""
    has_spec: bool = False
    """It is given the job's SPEC as a file."""
    result_as_message: bool = False
    """What it writes to ``/airflow/xcom/return.json`` is its result (the termination message)."""
    gpu_resource: str = "nvidia.com/gpu"
    startup_timeout: float | None = None
    """Seconds from the pod's creation to its start; None: the policy's start deadline."""
    get_logs: bool = True
    keep: str = "delete_pod"
    """``on_finish_action`` of the provider's operator."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return str(self.pod.get("metadata", {}).get("namespace") or "default")

    def to_dict(self) -> dict[str, Any]:
        """As a trigger's argument."""
        return asdict(self)


def pod_name(plan: PodPlan, job_id: str, epoch: int) -> str:
    """Name of the one pod of a job in an epoch, so that creating it twice is impossible."""
    end = f"-{job_id}-{epoch}"
    own = re.sub(r"[^a-z0-9-]+", "-", str(plan.pod.get("metadata", {}).get("name") or "emep").lower())
    return own[: NAME_LENGTH - len(end)].strip("-") + end if own.strip("-") else f"emep{end}"


def labels(job_id: str, allocation_id: str, epoch: int) -> dict[str, str]:
    """The labels by which EMEP finds its objects."""
    return {JOB: job_id, ALLOCATION: allocation_id, EPOCH: str(epoch)}


def build_secret(
    plan: PodPlan, job_id: str, allocation_id: str, lease: LeaseAnswer, owner_uid: str
) -> dict[str, Any]:
    """The Secret with the lease's token, and the SPEC where there is one. It dies with its pod.

    Raises ValueError where the SPEC is too large for one.
    """
    name = pod_name(plan, job_id, lease.epoch)
    data = {TOKEN_KEY: lease.lease_token.removeprefix(LEASE_PREFIX).encode()}
    if plan.has_spec:
        spec = json.dumps(lease.spec or {}, separators=(",", ":")).encode()
        if len(spec) > MAX_SPEC_BYTES:
            raise ValueError(
                f"input: the SPEC has {len(spec):,} bytes, a pod can be given {MAX_SPEC_BYTES:,} at most; "
                "name large things by their URI"
            )
        data[SPEC_KEY] = spec
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": plan.namespace,
        "labels": labels(job_id, allocation_id, lease.epoch),
        # Kubernetes deletes what is owned when its owner is deleted.
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": owner_uid}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def ungated(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The patch that lets a pod be scheduled; other people's gates stay."""
    gates = [gate for gate in pod["spec"].get("schedulingGates") or [] if gate.get("name") != GATE]
    return {"spec": {"schedulingGates": gates or None}}


def is_gated(pod: Mapping[str, Any]) -> bool:
    """Whether a pod still waits for its Secret."""
    return any(gate.get("name") == GATE for gate in pod["spec"].get("schedulingGates") or [])


def build_pod(plan: PodPlan, job_id: str, allocation_id: str, lease: LeaseAnswer) -> dict[str, Any]:
    """The pod of one epoch. Raises ValueError where the rendered pod has no base container."""
    pod = copy.deepcopy(plan.pod)
    name = pod_name(plan, job_id, lease.epoch)
    metadata = pod.setdefault("metadata", {})
    metadata["name"], metadata["namespace"] = name, plan.namespace
    metadata["labels"] = (metadata.get("labels") or {}) | labels(job_id, allocation_id, lease.epoch)
    annotations = {"emep/gpus": ",".join(f"{gpu.node}:{gpu.index}" for gpu in lease.gpus)}
    if plan.keep != "delete_pod":
        annotations["emep/on-finish"] = plan.keep
    if not plan.get_logs or plan.base_container != "base":
        annotations[LOG_OF] = plan.base_container if plan.get_logs else ""
    metadata["annotations"] = (metadata.get("annotations") or {}) | annotations
    spec = pod.setdefault("spec", {})
    spec["restartPolicy"] = "Never"
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), {"name": GATE}]
    spec["affinity"] = pinned(spec.get("affinity"), lease.nodes[0])
    _limit_times(spec, lease)
    _complete_base(plan, _base_container(plan, spec), name, lease)
    if plan.has_spec:
        _mount_spec(spec, name)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def pinned(affinity: Mapping[str, Any] | None, node: str) -> dict[str, Any]:
    """The affinity, with the granted node required in addition to its former requirements."""
    merged = copy.deepcopy(dict(affinity or {}))
    on_nodes = merged.setdefault("nodeAffinity", {})
    required = on_nodes.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    # Terms are alternatives: the pin belongs into each.
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or []), _pin(node)]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    return merged


def _pin(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def _limit_times(spec: dict[str, Any], lease: LeaseAnswer) -> None:
    grace = math.ceil(lease.grace)
    own = spec.get("terminationGracePeriodSeconds")
    spec["terminationGracePeriodSeconds"] = grace if own is None else min(own, grace)
    if lease.max_duration is not None:
        # A backstop for the case that no part of EMEP runs; otherwise the ledger ends it long before.
        limit = math.ceil(lease.max_duration + lease.start_deadline + lease.grace)
        own = spec.get("activeDeadlineSeconds")
        spec["activeDeadlineSeconds"] = limit if own is None else min(own, limit)


def _base_container(plan: PodPlan, spec: Mapping[str, Any]) -> dict[str, Any]:
    for container in spec.get("containers") or []:
        if container.get("name") == plan.base_container:
            return container  # type: ignore[no-any-return]
    raise ValueError(f"base_container_name: the pod has no container {plan.base_container!r}")


def _complete_base(plan: PodPlan, base: dict[str, Any], name: str, lease: LeaseAnswer) -> None:
    resources = dict(base.get("resources") or {})
    for kind in ("limits", "requests"):
        kept = {key: value for key, value in (resources.get(kind) or {}).items() if key not in VISIBLE}
        if kind == "limits" and lease.gpu_count:
            kept[plan.gpu_resource] = str(lease.gpu_count)
        resources[kind] = kept
    base["resources"] = {kind: values for kind, values in resources.items() if values}
    base["env"] = _environment(plan, base.get("env") or [], name, lease)
    if plan.result_as_message and not base.get("terminationMessagePath"):
        base["terminationMessagePath"] = XCOM_PATH
    if plan.supervised:
        # Where the kubelet finds the Result if the supervisor is ended before it could report it.
        path = base.get("terminationMessagePath") or MESSAGE_PATH
        base["env"].append({"name": "EMEP_TERMINATION_LOG", "value": path})


def _environment(
    plan: PodPlan, own: Sequence[Mapping[str, Any]], secret: str, lease: LeaseAnswer
) -> list[dict[str, Any]]:
    devices = ",".join(str(index) for index in range(lease.gpu_count))
    values = {
        **lease.environment,
        "EMEP_API_URL": plan.api_url,
        "EMEP_GRACE_SECONDS": f"{lease.grace:g}",
        # No agent reports for a pod, so it reports its end for as long as the lease allows silence.
        "EMEP_COMPLETE_SECONDS": f"{lease.max_silence:g}",
        "EMEP_GPU_INDICES": devices,
        # The kubelet picks the devices and shows the container these only, counted from 0.
        VISIBLE.get(plan.gpu_resource, "CUDA_VISIBLE_DEVICES"): devices,
    }
    if lease.gpu_count == 0:
        values["NVIDIA_VISIBLE_DEVICES"] = "void"
    if plan.has_spec:
        values["EMEP_RESULT_PATH"] = f"{RUN_FOLDER}/result.json"
    named = {str(entry.get("name")) for entry in own}
    values = {key: value for key, value in values.items() if not (key in PLACES and key in named)}
    token = {"secretKeyRef": {"name": secret, "key": TOKEN_KEY}}
    granted: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in sorted(values.items())]
    granted.append({"name": "EMEP_LEASE_TOKEN", "valueFrom": token})
    ours = {entry["name"] for entry in granted}
    return [dict(entry) for entry in own if entry.get("name") not in ours] + granted


def _mount_spec(spec: dict[str, Any], secret: str) -> None:
    """The SPEC as a file, and an empty folder that the supervisor may write its result to."""
    items = [{"key": SPEC_KEY, "path": SPEC_KEY}]
    volumes = [
        {"name": "emep-spec", "secret": {"secretName": secret, "items": items}},
        {"name": "emep-run", "emptyDir": {}},
    ]
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes]
    mounts = [
        {"name": "emep-spec", "mountPath": SPEC_FOLDER, "readOnly": True},
        {"name": "emep-run", "mountPath": RUN_FOLDER},
    ]
    for container in spec["containers"]:
        if any(entry.get("name") == "EMEP_RESULT_PATH" for entry in container.get("env") or []):
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), *mounts]
