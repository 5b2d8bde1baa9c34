"""Helpers of the pod operator: a pod as JSON, its GPU limit, and a placeholder lease for dry runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from emep.kubernetes.manifest import VISIBLE

if TYPE_CHECKING:
    from kubernetes.client import models as k8s

    from emep.wire.leases import LeaseAnswer

PLACEHOLDER = "PLACEHOLDER"
"""Stands for values that only the grant decides."""


def as_json(pod: k8s.V1Pod) -> dict[str, Any]:
    """The pod as the API's own JSON."""
    from kubernetes.client import ApiClient

    with ApiClient() as api:
        found: dict[str, Any] = json.loads(json.dumps(api.sanitize_for_serialization(pod)))
    return found


def gpus_of(resources: k8s.V1ResourceRequirements | None) -> int | None:
    """The GPUs of a container's limit, or of its request; None where it names none."""
    if resources is None:
        return None
    for name in VISIBLE:
        for values in (resources.limits, resources.requests):
            if values and name in values:
                return int(values[name])
    return None


def placeholder_lease(gpus: Any, max_duration: Any) -> LeaseAnswer:
    """A lease under the default policy, for a pod that is only looked at.

    ``gpus`` and ``max_duration`` (seconds, or with a unit) are the operator's; None, "" and "None" say
    nothing. Raises ValueError where one cannot be read.
    """
    from emep.policy import default_policy
    from emep.wire.jobs import GpuRef
    from emep.wire.leases import LeaseAnswer
    from emep.wire.units import parse_duration

    policy = default_policy()
    count = int(gpus or 0)
    return LeaseAnswer(
        job_id="job",
        epoch=1,
        lease_token=PLACEHOLDER,
        started=False,
        environment={"EMEP_ALLOCATION_ID": "job-1", "EMEP_LEASE_EPOCH": "1"},
        nodes=[PLACEHOLDER],
        gpus=[GpuRef(node=PLACEHOLDER, index=index, uuid="") for index in range(count)],
        gpu_count=count,
        spec=None,
        max_duration=parse_duration(max_duration) if max_duration not in (None, "", "None") else None,
        start_deadline=policy.lease.start_deadline,
        grace=policy.preemption.grace_period,
        grace_left=None,
        heartbeat=policy.lease.heartbeat,
        max_silence=policy.lease.max_silence,
        deadline=None,
    )
