"""Three container images written by hand, as the archives that `docker save` writes; no registry is asked.

`pause` keeps a pod's namespaces, `busybox` is a shell with its tools, and `host-root` holds empty folders
only: a pod mounts the host's /usr, Python and the project into them (`tests.cluster.pods.python_pod`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.cluster.packages import program
from tests.cluster.settings import BUSYBOX_IMAGE, HOST_ROOT_IMAGE, PAUSE_IMAGE, cache_folder

_TOOLS = [
    "cat",
    "date",
    "echo",
    "env",
    "false",
    "grep",
    "head",
    "id",
    "kill",
    "ls",
    "mkdir",
    "nc",
    "ps",
    "rm",
    "sed",
    "sh",
    "sleep",
    "tail",
    "touch",
    "true",
    "wc",
    "wget",
]
_FOLDERS = ["airflow", "dev", "etc", "proc", "root", "run", "sys", "tmp", "var"]
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class _Layer:
    """One file system layer; entries have no owner, no time, so that the same content has the same digest."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115 - content() closes it

    def folders(self, names: Iterable[str]) -> None:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            self._tar.addfile(entry)

    def links(self, targets: Mapping[str, str]) -> None:
        for name, target in targets.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
            self._tar.addfile(entry)

    def program(self, name: str, source: Path) -> None:
        content = source.read_bytes()
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), 0o755
        self._tar.addfile(entry, io.BytesIO(content))

    def content(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def _archive(name: str, layer: bytes, entrypoint: list[str] | None = None) -> bytes:
    digest = hashlib.sha256(layer).hexdigest()
    configuration = {
        "architecture": _MACHINES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            **({"Entrypoint": entrypoint} if entrypoint else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    described = json.dumps(configuration, sort_keys=True).encode()
    described_as = hashlib.sha256(described).hexdigest() + ".json"
    manifest = [{"Config": described_as, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        parts = {
            described_as: described,
            f"{digest}/layer.tar": layer,
            "manifest.json": json.dumps(manifest).encode(),
        }
        for path, content in parts.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _busybox() -> bytes:
    layer = _Layer()
    layer.folders(["bin", *_FOLDERS])
    layer.program("bin/busybox", Path(program("busybox")))
    layer.links({f"bin/{tool}": "busybox" for tool in _TOOLS})
    return layer.content()


def _host_root() -> bytes:
    layer = _Layer()
    layer.folders(["usr", *_FOLDERS])
    # Where /bin and its kind are links into /usr, as on the host.
    layer.links({n: f"usr/{n}" for n in ("bin", "sbin", "lib", "lib64") if Path("/", n).is_symlink()})
    return layer.content()


def write_images() -> list[Path]:
    """The archives in the cache, written anew each time (a few MB), each replaced at once."""
    folder = cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    busybox = _busybox()
    images = {
        "pause": _archive(PAUSE_IMAGE, busybox, ["/bin/sleep", "2147483647"]),
        "busybox": _archive(BUSYBOX_IMAGE, busybox),
        "host-root": _archive(HOST_ROOT_IMAGE, _host_root()),
    }
    written = []
    for name, content in images.items():
        target = folder / f"{name}.tar"
        fresh = target.with_name(f"{name}.{os.getpid()}")
        fresh.write_bytes(content)
        written.append(fresh.replace(target))
    return written
