"""Reads what a pod's status means for its job. Pure functions over the API's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from emep.kubernetes.manifest import ALLOCATION, EPOCH, JOB, XCOM_PATH


class Phase(str, Enum):
    """Where a pod's work stands."""

    WAITING = "waiting"
    BROKEN = "broken"
    """It can never start: unknown image, missing configuration."""
    RUNNING = "running"
    FINISHED = "finished"
    """The work has ended, with an exit code of its own."""
    LOST = "lost"
    """Taken away by the cluster: evicted, refused by the kubelet, its node gone."""


EVICTED = frozenset(
    {"Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity", "Preempting",
     "Preempted", "UnexpectedAdmissionError", "NodeFailure", "TerminationByKubelet"}
)  # fmt: skip
"""Reasons in a pod's status that say the cluster ended it."""
HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})
"""Reasons of a waiting container that time alone does not cure."""
REFUSED = ("not found", "does not exist", "denied", "unauthorized", "invalid", "not present", "authorization")
"""In a registry's answer: another try gets the same."""
EXIT_OVERDUE = 124
EXIT_BAD_INPUT, EXIT_FAILED, EXIT_KILLED = 65, 1, 137
MESSAGE_BYTES = 4096
"""The kubelet keeps as much of a termination message."""


@dataclass(frozen=True)
class PodState:
    """The state of a pod that matters to its job."""

    phase: Phase
    reason: str = ""
    """In words, where there is one."""
    exit_code: int | None = None
    message: str = ""
    """The termination message."""
    deleting: bool = False
    """The pod has been asked to end (it has a deletion timestamp)."""
    refused: bool = False
    """True if the pod is broken in a way that a retry cannot help."""
    began: bool = field(default=False, compare=False)
    """Its process has run, so there is a log."""
    placed: bool = field(default=False, compare=False)
    """It has a node."""


def identity(pod: Mapping[str, Any]) -> tuple[str, str, int]:
    """(job, allocation, epoch) that EMEP's labels name; epoch -1 where they are not EMEP's."""
    found = pod["metadata"].get("labels") or {}
    epoch = str(found.get(EPOCH, ""))
    return str(found.get(JOB, "")), str(found.get(ALLOCATION, "")), int(epoch) if epoch.isdigit() else -1


def read(pod: Mapping[str, Any], base: str = "base") -> PodState:
    """The state of a pod by its base container; sidecars that still run do not keep it from being over."""
    container = _container((pod.get("status") or {}).get("containerStatuses"), base)
    placed = bool((pod.get("spec") or {}).get("nodeName"))
    return replace(_read(pod, base), began=_has_begun(container.get("state") or {}), placed=placed)


def _has_begun(state: Mapping[str, Any]) -> bool:
    """Whether the container ran; for one that could not start the kubelet reports a start in 1970."""
    if state.get("running") is not None:
        return True
    began = str((state.get("terminated") or {}).get("startedAt") or "")
    return bool(began) and not began.startswith("1970-")


def _read(pod: Mapping[str, Any], base: str) -> PodState:
    status: Mapping[str, Any] = pod.get("status") or {}
    deleting = bool(pod["metadata"].get("deletionTimestamp"))
    container = _container(status.get("containerStatuses"), base)
    terminated = (container.get("state") or {}).get("terminated")
    taken = _taken_away(status)
    if terminated is not None and not (taken and terminated.get("exitCode", 1) != 0):
        return _finished(terminated, base, deleting)
    if taken:
        return PodState(Phase.LOST, taken, deleting=deleting)
    if status.get("phase") in ("Failed", "Succeeded"):
        return _ended_without_base(status, deleting)
    if (container.get("state") or {}).get("running") is not None:
        return PodState(Phase.RUNNING, deleting=deleting)
    return _waiting(status, container, deleting)


def result_of(message: str) -> Any:
    """The JSON that a container left as its termination message.

    Raises ValueError in one sentence where it is none by RFC 8259 (NaN and infinities are none), more than
    the kubelet keeps, or what the ledger cannot store.
    """
    try:
        found = json.loads(message, parse_constant=_no_number)
    except _NoNumberError as error:
        raise ValueError(
            f"the result in {XCOM_PATH} has {error}, which is no number in JSON: write null or a text"
        ) from None
    except (ValueError, RecursionError):
        if len(message.encode()) >= MESSAGE_BYTES:
            raise ValueError(
                f"the result in {XCOM_PATH} is longer than the {MESSAGE_BYTES:,} bytes that "
                "Kubernetes keeps: write it to the artifact store and return its URI"
            ) from None
        raise ValueError(f"the result in {XCOM_PATH} is not JSON") from None
    try:
        _check_storable(found)
    except ValueError as error:
        raise ValueError(f"the result in {XCOM_PATH} cannot be kept: {error}") from None
    return found


def _check_storable(document: Any) -> None:
    # Parsing a DAG imports this module, and has no use for the API's documents.
    from emep.wire.base import check_storable

    check_storable(document)


class _NoNumberError(ValueError):
    """A constant that Python's reader knows and JSON does not."""


def _no_number(constant: str) -> Any:
    raise _NoNumberError(constant)


def finished_result(message: str, epoch: int) -> dict[str, Any] | None:
    """The Result that a supervisor left as termination message, where it says that this epoch's work is done.

    None for anything else: a longer Result is left out, and other images write what they like.
    """
    try:
        result = json.loads(message, parse_constant=_no_number)
        _check_storable(result)
    except (ValueError, RecursionError):
        return None
    if not isinstance(result, dict) or (result.get("status"), result.get("epoch")) != ("done", epoch):
        return None
    return result


def is_ready(node: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether Kubernetes calls a node ready, and why not."""
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Ready":
            words = condition.get("message") or condition.get("reason") or "it does not say why"
            return (True, "") if condition.get("status") == "True" else (False, str(words)[:500])
    return False, "its kubelet has not reported yet"


def _container(statuses: Any, name: str) -> Mapping[str, Any]:
    return next((entry for entry in statuses or [] if entry.get("name") == name), {})


def _taken_away(status: Mapping[str, Any]) -> str:
    """In words, why the cluster took the pod away; empty where it did not."""
    reason = str(status.get("reason") or "")
    if reason in EVICTED or reason.startswith("OutOf"):
        return f"{reason}: {status.get('message') or 'no message'}"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"{condition.get('reason') or 'disrupted'}: {condition.get('message') or 'no message'}"
    return ""


def _finished(terminated: Mapping[str, Any], base: str, deleting: bool) -> PodState:
    code = int(terminated.get("exitCode", EXIT_FAILED))
    reason, message = str(terminated.get("reason") or ""), str(terminated.get("message") or "")
    if reason == "ContainerStatusUnknown":
        return PodState(Phase.LOST, "its node no longer knows the container", deleting=deleting)
    words = ""
    if reason == "OOMKilled":
        words = f"container {base} was killed for its memory limit (OOMKilled)"
    elif reason in ("StartError", "ContainerCannotRun"):
        words = f"container {base} could not be started: {message}"
    elif terminated.get("signal"):
        words = f"container {base} was ended by signal {terminated['signal']}"
    return PodState(Phase.FINISHED, words, code, message, deleting)


def _ended_without_base(status: Mapping[str, Any], deleting: bool) -> PodState:
    for init in status.get("initContainerStatuses") or []:
        ended = (init.get("state") or {}).get("terminated")
        if ended is not None and ended.get("exitCode", 0) != 0:
            words = f"init container {init.get('name')} exited with {ended['exitCode']}"
            return PodState(Phase.FINISHED, words, int(ended["exitCode"]), "", deleting)
    if status.get("reason") == "DeadlineExceeded":
        return PodState(
            Phase.FINISHED, "the pod's activeDeadlineSeconds are over", EXIT_OVERDUE, "", deleting
        )
    words = status.get("message") or status.get("reason") or "the pod ended without its container"
    return PodState(Phase.LOST, str(words), deleting=deleting)


def _waiting(status: Mapping[str, Any], container: Mapping[str, Any], deleting: bool) -> PodState:
    blocked = [container, *(status.get("initContainerStatuses") or [])]
    for entry in blocked:
        waiting = (entry.get("state") or {}).get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in ("", "ContainerCreating", "PodInitializing"):
            continue
        image = f"image {entry.get('image')!r}: " if "Image" in reason else ""
        words = f"{image}{reason}: {message}" if message else f"{image}{reason}"
        if reason in HOPELESS:
            return PodState(Phase.BROKEN, words, deleting=deleting, refused=True)
        refused = any(word in message.lower() for word in REFUSED)
        is_pull = reason == "ImagePullBackOff" or (reason == "ErrImagePull" and refused)
        if is_pull and "qps exceeded" not in message.lower():
            return PodState(Phase.BROKEN, words, deleting=deleting, refused=refused)
        return PodState(Phase.WAITING, words, deleting=deleting)
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            words = f"{condition.get('reason')}: {condition.get('message')}"
            return PodState(Phase.WAITING, words, deleting=deleting)
    return PodState(Phase.WAITING, deleting=deleting)
