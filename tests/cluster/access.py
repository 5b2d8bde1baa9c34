"""Who may do what in a test cluster: the account of docker/kubernetes/rbac.yaml, and a namespace wiped clean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tests.cluster.certificates import write_kubeconfig
from tests.cluster.settings import PROJECT
from tests.cluster.waiting import until

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, CoreV1Api
    from tests.cluster.local import LocalCluster

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


def apply_rights(kubeconfig: Path) -> None:
    """Creates what docker/kubernetes/rbac.yaml describes, as `kubectl apply` would; what exists is left alone."""
    from kubernetes import utils

    api = client(kubeconfig)
    for document in yaml.safe_load_all(RIGHTS.read_text()):
        try:
            utils.create_from_dict(api, document)
        except utils.FailToCreateError as error:
            if any(cause.status != 409 for cause in error.api_exceptions):
                raise


def grant(cluster: LocalCluster) -> None:
    """The account, its rights, and `emep.kubeconfig` with a token of a day."""
    apply_rights(cluster.kubeconfig)
    request: dict[str, Any] = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], "expirationSeconds": 86400},
    }
    until(
        lambda: [
            a
            for a in cluster.core.list_namespaced_service_account(NAMESPACE).items
            if a.metadata.name == "default"
        ],
        60,
        f"the default service account of {NAMESPACE}",
    )
    answer = cluster.core.create_namespaced_service_account_token(ACCOUNT, NAMESPACE, request)
    user = {"token": answer.status.token}
    keys = cluster.folder / "keys"
    write_kubeconfig(cluster.emep_kubeconfig, cluster.control_plane.server, keys, user, NAMESPACE)


def wipe(api: CoreV1Api, namespace: str, timeout_s: float = 60) -> None:
    """Deletes the namespace's pods (without their grace), secrets, config maps and events; waits for the pods."""
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
