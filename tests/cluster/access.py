"""Who may do what in a test cluster (docker/kubernetes/rbac.yaml), and other calls to its API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tests.cluster.settings import GPU_RESOURCE, PROJECT
from tests.cluster.waiting import until

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, CoreV1Api
RIGHTS = PROJECT / "docker" / "kubernetes" / "rbac.yaml"
NAMESPACE = "emep"
ACCOUNT = "emep"


def client(kubeconfig: Path) -> ApiClient:
    """A client with the rights of that file."""
    from kubernetes import config

    return config.new_client_from_config(str(kubeconfig))


def core(kubeconfig: Path) -> CoreV1Api:
    """The API of pods, secrets, nodes."""
    from kubernetes.client import CoreV1Api

    return CoreV1Api(client(kubeconfig))


def rights(namespace: str) -> list[dict[str, Any]]:
    """The manifest's documents, for another namespace than the one that it names."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(RIGHTS.read_text()))
    for document in documents:
        metadata = document["metadata"]
        if document["kind"] == "Namespace":
            metadata["name"] = namespace
        elif "namespace" in metadata:
            metadata["namespace"] = namespace
        elif document["kind"] == "ClusterRoleBinding" and namespace != NAMESPACE:
            metadata["name"] += f"-{namespace}"
        for subject in document.get("subjects", []):
            subject["namespace"] = namespace
    return documents


def grant(kubeconfig: Path, target: Path, namespace: str) -> None:
    """Creates EMEP's account and its rights where they are missing, and writes its kubeconfig to `target`.

    Its token is good for a day.
    """
    from kubernetes import utils

    api = client(kubeconfig)
    for document in rights(namespace):
        try:
            utils.create_from_dict(api, document)
        except utils.FailToCreateError as error:
            if any(cause.status != 409 for cause in error.api_exceptions):
                raise
    calls = core(kubeconfig)
    until(lambda: _accounts(calls, namespace) >= {"default", ACCOUNT}, 60, f"the accounts of {namespace}")
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], "expirationSeconds": 86400},
    }
    answer = calls.create_namespaced_service_account_token(ACCOUNT, namespace, request)
    document = yaml.safe_load(kubeconfig.read_text())
    chosen = next(c for c in document["contexts"] if c["name"] == document["current-context"])
    chosen["context"] |= {"user": ACCOUNT, "namespace": namespace}
    document["contexts"] = [chosen]
    document["users"] = [{"name": ACCOUNT, "user": {"token": answer.status.token}}]
    target.touch(mode=0o600)
    target.write_text(yaml.safe_dump(document))


def _accounts(calls: CoreV1Api, namespace: str) -> set[str]:
    return {account.metadata.name for account in calls.list_namespaced_service_account(namespace).items}


def set_gpus(calls: CoreV1Api, node: str, count: int) -> None:
    """What the scheduler believes about a node's GPUs; a kubelet that has no devices accepts it."""
    resource = GPU_RESOURCE.replace("/", "~1")
    change = [
        {"op": "add", "path": f"/status/{part}/{resource}", "value": str(count)}
        for part in ("capacity", "allocatable")
    ]
    calls.patch_node_status(node, change)


def wipe(api: CoreV1Api, namespace: str, timeout_s: float = 60) -> None:
    """Deletes a namespace's pods (without their grace), secrets, config maps, events; waits for the pods."""
    api.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
    api.delete_collection_namespaced_secret(namespace)
    api.delete_collection_namespaced_config_map(namespace, field_selector="metadata.name!=kube-root-ca.crt")
    until(
        lambda: not api.list_namespaced_pod(namespace).items, timeout_s, f"the pods of {namespace} to be gone"
    )
    api.delete_collection_namespaced_event(namespace)


def logs(api: CoreV1Api, pod: str, namespace: str, container: str | None = None) -> str:
    """A container's output so far. (The client's own decoding would give the text of a bytes literal.)"""
    chosen = {"container": container} if container else {}
    answer = api.read_namespaced_pod_log(pod, namespace, _preload_content=False, **chosen)
    return str(answer.data.decode())
