"""The pods that a watch knows, by name and by job, and those that have left with their last status."""

from __future__ import annotations

from typing import Any

from emep.kubernetes import status

DEPARTED = 2000
"""How many pods that have left are remembered."""


class PodStore:
    """Pods that the watch has reported, and those that were created or read since."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.departed: dict[str, dict[str, Any]] = {}
        self._names: dict[str, set[str]] = {}

    def of_job(self, job_id: str) -> list[dict[str, Any]]:
        """Pods of a job that are there, of whatever epoch."""
        return [self.pods[name] for name in self._names.get(job_id, ())]

    def put(self, pod: dict[str, Any]) -> None:
        """Store the present state of a pod."""
        name = pod["metadata"]["name"]
        self.pods[name] = pod
        self._names.setdefault(status.identity(pod)[0], set()).add(name)

    def add(self, pod: dict[str, Any]) -> None:
        """Add a pod that was just created or read, unless the watch has reported it meanwhile."""
        known = self.pods.get(pod["metadata"]["name"])
        if known is None or known["metadata"]["uid"] != pod["metadata"]["uid"]:
            self.put(pod)

    def remove(self, pod: dict[str, Any]) -> None:
        """Store the last state of a pod that is gone."""
        name, job_id = pod["metadata"]["name"], status.identity(pod)[0]
        self.pods.pop(name, None)
        names = self._names.get(job_id, set())
        names.discard(name)
        if not names:
            self._names.pop(job_id, None)
        while len(self.departed) >= DEPARTED:
            self.departed.pop(next(iter(self.departed)))
        self.departed[name] = pod

    def replace(self, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Replace all pods; return those that have left since."""
        there = {pod["metadata"]["name"] for pod in pods}
        left = [pod for name, pod in self.pods.items() if name not in there]
        for pod in left:
            self.remove(pod)
        for pod in pods:
            self.put(pod)
        return left
