"""etcd, API server, controller manager and scheduler: how each is started, and when it is ready."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

from tests.cluster.certificates import Authority, by_certificate, write_kubeconfig
from tests.cluster.packages import program
from tests.cluster.processes import Register
from tests.cluster.settings import ClusterError, Settings, node_address
from tests.cluster.waiting import until

_SERVICES = "10.96.0.0/16"
_FIRST_SERVICE = "10.96.0.1"


class ControlPlane:
    """The servers of one cluster, all on its first loopback address."""

    def __init__(self, folder: Path, slot: int, settings: Settings, register: Register, binary: Path) -> None:
        self.folder = folder
        self.server = f"https://{node_address(slot, 1)}:{settings.api_port}"
        self._address = node_address(slot, 1)
        self._nodes = [node_address(slot, number) for number in range(1, settings.nodes + 1)]
        self._settings = settings
        self._register = register
        self._binary = binary
        self._keys = folder / "keys"

    def prepare(self) -> None:
        """Certificates and kubeconfigs."""
        authority = Authority(self._keys)
        kubernetes = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        authority.server("api-server", "kube-apiserver", kubernetes, [self._address, _FIRST_SERVICE])
        authority.server("kubelet-server", "kubelet", ["localhost"], self._nodes)
        authority.client("admin", "admin", "system:masters")
        authority.client("to-kubelets", "kube-apiserver-kubelet-client", "system:masters")
        for file in ("controller-manager", "scheduler"):
            authority.client(file, f"system:kube-{file}")
        for number, name in enumerate(self._nodes, start=1):
            authority.client(f"kubelet{number}", f"system:node:{name}", "system:nodes")
        for file in ("admin", "controller-manager", "scheduler"):
            user = by_certificate(self._keys, file)
            write_kubeconfig(self.folder / f"{file}.kubeconfig", self.server, self._keys, user, "default")

    def start_api(self) -> None:
        """etcd and the API server; does not wait."""
        self._start_etcd()
        self.start_api_server()

    def _start_etcd(self) -> None:
        clients = f"http://{self._address}:{self._settings.etcd_port}"
        peers = f"http://{self._address}:{self._settings.etcd_port + 1}"
        self._register.start(
            "etcd",
            [
                program("etcd"),
                f"--data-dir={self.folder / 'etcd'}",
                "--unsafe-no-fsync",  # it holds nothing that has to outlive the machine
                "--log-level=warn",
                f"--listen-client-urls={clients}",
                f"--advertise-client-urls={clients}",
                f"--listen-peer-urls={peers}",
                f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}",
            ],
        )

    def start_api_server(self) -> None:
        """Starts the API server; does not wait."""
        keys, wait = self._keys, self._settings.toleration_s
        self._register.start(
            "kube-apiserver",
            [
                str(self._binary),
                "kube-apiserver",
                f"--etcd-servers=http://{self._address}:{self._settings.etcd_port}",
                f"--bind-address={self._address}",
                f"--secure-port={self._settings.api_port}",
                "--endpoint-reconciler-type=none",  # it would refuse to announce a loopback address
                f"--service-cluster-ip-range={_SERVICES}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                f"--default-not-ready-toleration-seconds={wait}",
                f"--default-unreachable-toleration-seconds={wait}",
                f"--client-ca-file={keys / 'ca.crt'}",
                f"--tls-cert-file={keys / 'api-server.crt'}",
                f"--tls-private-key-file={keys / 'api-server.key'}",
                f"--cert-dir={self.folder / 'api-server'}",
                f"--kubelet-certificate-authority={keys / 'ca.crt'}",
                f"--kubelet-client-certificate={keys / 'to-kubelets.crt'}",
                f"--kubelet-client-key={keys / 'to-kubelets.key'}",
                "--kubelet-preferred-address-types=InternalIP",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={keys / 'accounts.pub'}",
                f"--service-account-signing-key-file={keys / 'accounts.key'}",
                "--profiling=false",
            ],
        )

    def stop_api_server(self, grace_s: float = 0.0) -> None:
        """SIGTERM and, after the grace, SIGKILL (at once without one)."""
        process = self._register.latest("kube-apiserver")
        if process is None:
            raise ClusterError("No API server runs.")
        process.stop(grace_s)

    def start_controllers(self) -> None:
        """Controller manager and scheduler; does not wait."""
        for name, options in {
            "controller-manager": [
                f"--root-ca-file={self._keys / 'ca.crt'}",
                f"--service-account-private-key-file={self._keys / 'accounts.key'}",
                "--use-service-account-credentials=true",
                f"--node-monitor-grace-period={self._settings.node_grace_s}s",
                "--node-monitor-period=2s",
            ],
            "scheduler": [],
        }.items():
            own = self.folder / f"{name}.kubeconfig"
            self._register.start(
                f"kube-{name}",
                [str(self._binary), f"kube-{name}", f"--bind-address={self._address}", "--leader-elect=false"]
                + [f"--{use}kubeconfig={own}" for use in ("", "authentication-", "authorization-")]
                + options,
            )

    def wait_ready(self, timeout_s: float = 120) -> None:
        """Until the API server says that it is ready. Raises ClusterError at once if it or etcd has ended."""
        context = ssl.create_default_context(cafile=str(self._keys / "ca.crt"))
        context.load_cert_chain(self._keys / "admin.crt", self._keys / "admin.key")

        def ready() -> bool:
            for name in ("etcd", "kube-apiserver"):
                if self._register.latest(name) is None:
                    raise ClusterError(f"{name} ended: {self._register.last_words(name)}")
            connection = http.client.HTTPSConnection(
                self._address, self._settings.api_port, context=context, timeout=5
            )
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False
            finally:
                connection.close()

        until(ready, timeout_s, f"the API server at {self.server}", every_s=0.1)
