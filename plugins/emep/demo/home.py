"""The demo's folder: its paths, its secrets (made once), and the checks before anything starts."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from emep.demo.processes import DemoError

_LOWEST_FREE_SPACE = 2 * 1024**3


@dataclass(frozen=True)
class Secrets:
    """Made at the first run, kept in a file that only its owner may read."""

    admin_password: str
    service_password: str
    agent_token: str
    jwt_secret: str
    fernet_key: str


@dataclass(frozen=True)
class DemoHome:
    """Paths below the demo's folder."""

    root: Path

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.root / "airflow"

    @property
    def logs(self) -> Path:
        """Output of every process."""
        return self.root / "logs"

    @property
    def models(self) -> Path:
        """Models, recipe and tasks."""
        return self.root / "models"

    @property
    def policy(self) -> Path:
        """The project's policy with the demo's models among what jobs may read."""
        return self.root / "policy.yaml"

    @property
    def artifacts(self) -> Path:
        """What the engines write."""
        return self.root / "artifacts"

    @property
    def agents(self) -> Path:
        """Run folders of the agents."""
        return self.root / "agents"

    @property
    def passwords(self) -> Path:
        """Passwords of Airflow's simple auth manager."""
        return self.root / "passwords.json"

    def create(self) -> None:
        """Make the folders. Raises DemoError where that is not possible."""
        try:
            for folder in (self.root, self.airflow, self.logs, self.models, self.artifacts, self.agents):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise DemoError(
                f"{self.root}: the demo's folder cannot be written ({error.strerror}); "
                "choose another with --home",
                2,
            ) from None

    def secrets(self) -> Secrets:
        """The secrets of this home, made once. Raises DemoError for a file that was damaged."""
        path = self.root / "secrets.json"
        if path.exists():
            try:
                kept = Secrets(**json.loads(path.read_text()))
            except (ValueError, TypeError) as error:
                raise DemoError(
                    f"{path}: not the demo's secrets any more ({error}); remove {self.root} and start again",
                    2,
                ) from None
        else:
            kept = Secrets(
                admin_password=secrets.token_urlsafe(12),
                service_password=secrets.token_urlsafe(24),
                agent_token=secrets.token_urlsafe(32),
                jwt_secret=secrets.token_urlsafe(48),
                fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            )
            write_private(path, json.dumps(kept.__dict__))
        write_private(
            self.passwords, json.dumps({"admin": kept.admin_password, "emep": kept.service_password})
        )
        return kept


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, complete or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(beside, path)


def project_root() -> Path:
    """The clone with dags/, plugins/ and airflow_settings.yaml. Raises DemoError outside of one."""
    here = Path(__file__).resolve()
    for folder in (*here.parents, Path.cwd()):
        if (folder / "dags" / "emep_pipeline.py").is_file() and (folder / "airflow_settings.yaml").is_file():
            return folder
    raise DemoError(
        "emep demo needs the project's folder (dags/, plugins/, airflow_settings.yaml): run it from a clone",
        2,
    )


def check_python() -> None:
    """Raise DemoError unless this is a Python that Airflow and the engines run on, with both installed."""
    if not (3, 11) <= sys.version_info[:2] < (3, 13):
        found = ".".join(map(str, sys.version_info[:3]))
        raise DemoError(f"emep demo needs Python 3.11 or 3.12, this is {found}", 2)
    from importlib.util import find_spec

    for module, extra in (("airflow", "emep"), ("torch", "emep[engines]"), ("transformers", "emep[engines]")):
        if find_spec(module) is None:
            raise DemoError(f"{module} is not installed here: run `make env`, or install {extra}", 2)


def check_port(port: int) -> None:
    """Raise DemoError if something listens on this port of the loopback interface already."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            raise DemoError(
                f"port {port} needs a privilege that you do not have; choose one with --port", 2
            ) from None
        except OSError:
            raise DemoError(
                f"port {port} is taken: stop what listens there, or choose another with --port", 2
            ) from None


def check_space(folder: Path) -> None:
    """Raise DemoError if the disk is almost full."""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if free < _LOWEST_FREE_SPACE:
        raise DemoError(
            f"{folder}: only {free / 1024**3:.1f} GiB are free, the demo needs 2; make room or choose --home",
            2,
        )


class HomeLock:
    """Only one demo at a time in one home; the lock goes with the process."""

    def __init__(self, home: DemoHome) -> None:
        self._path = home.root / ".lock"
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock. Raises DemoError while another demo holds it."""
        import fcntl

        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DemoError(
                f"a demo runs in {self._path.parent} already; stop it, or choose another folder with --home",
                2,
            ) from None
