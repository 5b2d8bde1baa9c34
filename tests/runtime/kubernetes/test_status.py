"""What a pod's status means; the documents are as a real API server gave them, cut to what is read."""

from __future__ import annotations

from typing import Any

import pytest

from emep.kubernetes.status import Phase, finished_result, identity, is_ready, read, result_of


def pod(phase: str, *, base: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    states = [] if base is None else [{"name": "base", "image": "train:1", "state": base}]
    metadata: dict[str, Any] = {"name": "p"}
    if status.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": states, **status}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, **fields: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **fields}}


BROKEN = [
    (waiting("ErrImageNeverPull", 'image "train:1" is not present with pull policy of Never'), True),
    (waiting("InvalidImageName", "couldn't parse image name"), True),
    (waiting("ErrImagePull", "pull access denied, repository does not exist"), True),
    (waiting("ImagePullBackOff", "Back-off pulling image: dial tcp: i/o timeout"), False),
    (waiting("CreateContainerConfigError", 'configmap "x" not found'), True),
]


@pytest.mark.parametrize(("base", "refused"), BROKEN)
def test_what_can_never_start_is_named(base: dict[str, Any], refused: bool) -> None:
    state = read(pod("Pending", base=base))
    assert (state.phase, state.refused) == (Phase.BROKEN, refused)
    assert base["waiting"]["reason"] in state.reason
    assert "image 'train:1'" in state.reason or "Image" not in base["waiting"]["reason"]


@pytest.mark.parametrize(
    "base",
    [
        waiting("ContainerCreating"),
        waiting("ErrImagePull", "dial tcp: i/o timeout"),
        waiting("ImagePullBackOff", "pull QPS exceeded"),
        None,
    ],
)
def test_what_may_still_start_waits(base: dict[str, Any] | None) -> None:
    assert read(pod("Pending", base=base)).phase is Phase.WAITING


def test_why_it_is_not_scheduled_is_said() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "Insufficient nvidia.com/gpu",
    }
    state = read(pod("Pending", conditions=[condition]))
    assert (state.phase, state.reason) == (Phase.WAITING, "Unschedulable: Insufficient nvidia.com/gpu")


def test_a_sidecar_that_goes_on_does_not_keep_the_work_from_being_over() -> None:
    sidecar = {"name": "side", "state": {"running": {}}}
    document = pod("Running", base=ended(3, message="bad weights"))
    document["status"]["containerStatuses"].append(sidecar)
    state = read(document)
    assert (state.phase, state.exit_code, state.message) == (Phase.FINISHED, 3, "bad weights")


def test_an_end_for_memory_says_so() -> None:
    assert "memory limit" in read(pod("Failed", base=ended(137, reason="OOMKilled"))).reason


def test_a_command_that_is_not_there_says_so() -> None:
    state = read(pod("Failed", base=ended(128, reason="StartError", message='exec: "x": not found')))
    assert (state.phase, state.exit_code) == (Phase.FINISHED, 128)
    assert 'exec: "x": not found' in state.reason


@pytest.mark.parametrize(
    "reason", ["Evicted", "NodeLost", "OutOfnvidia.com/gpu", "UnexpectedAdmissionError", "Terminated"]
)
def test_what_the_cluster_takes_is_lost(reason: str) -> None:
    for base in (None, ended(137)):
        state = read(pod("Failed", base=base, reason=reason, message="low on memory"))
        assert (state.phase, state.reason) == (Phase.LOST, f"{reason}: low on memory")


def test_work_that_was_done_before_the_cluster_took_it_is_done() -> None:
    state = read(pod("Failed", base=ended(0), reason="Evicted"))
    assert (state.phase, state.exit_code) == (Phase.FINISHED, 0)


def test_a_disruption_is_a_loss() -> None:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "by hand",
    }
    state = read(pod("Running", base=ended(143), conditions=[condition]))
    assert (state.phase, state.reason) == (Phase.LOST, "EvictionByEvictionAPI: by hand")


def test_a_container_that_its_node_has_forgotten_is_lost() -> None:
    assert read(pod("Failed", base=ended(137, reason="ContainerStatusUnknown"))).phase is Phase.LOST


def test_an_init_container_that_fails_is_the_end() -> None:
    init = [{"name": "fetch", "state": ended(4)}]
    state = read(pod("Failed", initContainerStatuses=init))
    assert (state.phase, state.exit_code) == (Phase.FINISHED, 4)
    assert "fetch" in state.reason


def test_the_backstop_is_an_end_of_its_own() -> None:
    state = read(pod("Failed", reason="DeadlineExceeded"))
    assert (state.phase, state.exit_code) == (Phase.FINISHED, 124)


def test_one_that_is_being_deleted_says_so() -> None:
    assert read(pod("Running", base={"running": {}}, deleting=True)).deleting


def test_whose_pod_it_is() -> None:
    named = {"emep/job": "j", "emep/allocation": "j-2", "emep/epoch": "2"}
    assert identity({"metadata": {"labels": named}}) == ("j", "j-2", 2)
    assert identity({"metadata": {}}) == ("", "", -1)


def test_a_result_is_json_and_not_cut() -> None:
    assert result_of('{"a": 1}') == {"a": 1}
    with pytest.raises(ValueError, match="is not JSON"):
        result_of("done")
    with pytest.raises(ValueError, match="longer than the 4,096 bytes"):
        result_of("x" * 4096)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('{"loss": NaN}', "has NaN, which is no number in JSON: write null or a text"),
        ("-Infinity", "has -Infinity, which is no number"),
        ('{"a": [1e999]}', r"cannot be kept: a\[0\]: inf is not a finite number"),
        ('{"a": "\\u0000"}', "cannot be kept: a: has a NUL"),
        ("[" * 2000, "is not JSON"),
        ("[" * 2000 + "]" * 2000, "is not JSON|nested more than"),
    ],
)
def test_a_result_that_json_or_the_ledger_has_no_place_for_is_refused_in_one_sentence(
    message: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        result_of(message)
    assert "\n" not in str(caught.value)


def test_whether_a_node_is_ready() -> None:
    def node(status: str) -> dict[str, Any]:
        condition = {"type": "Ready", "status": status, "message": "kubelet stopped posting"}
        return {"status": {"conditions": [condition]}}

    assert is_ready(node("True")) == (True, "")
    assert is_ready(node("Unknown")) == (False, "kubelet stopped posting")
    assert is_ready({})[0] is False


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ('{"status": "done", "epoch": 3, "metrics": {}}', True),
        ('{"status": "done", "epoch": 2, "metrics": {}}', False),
        ('{"status": "preempted", "epoch": 3}', False),
        ('{"status": "done"}', False),
        ('["done", 3]', False),
        ('{"status": "done", "epo', False),
        ("", False),
        ('{"status": "done", "epoch": 3, "metrics": {"loss": NaN}}', False),
    ],
)
def test_a_message_is_the_result_of_a_finished_epoch_or_says_nothing(message: str, found: bool) -> None:
    assert (finished_result(message, 3) is not None) == found
