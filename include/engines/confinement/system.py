"""Paths that an engine needs beside its user's files: programs, libraries, devices. None holds a secret."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

PROGRAMS = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix/store", "/proc", "/sys",
    "/opt/rocm", "/opt/amdgpu", "/opt/nvidia",
    "/run/nvidia-persistenced", "/run/nvidia",
)  # fmt: skip
"""Read by every program on the machine. Another process's secrets in ``/proc`` stay closed to a
confined one."""
SETTINGS = tuple(
    f"/etc/{name}"
    for name in (
        "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "localtime", "timezone",
        "passwd", "group",
        "nsswitch.conf", "hosts", "host.conf", "resolv.conf", "gai.conf", "services", "protocols",
        "mime.types",
        "os-release", "machine-id", "alternatives", "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs",
        "pki/ca-trust/extracted", "ca-certificates", "nvidia", "nvidia-container-runtime", "OpenCL", "vulkan",
        "python3", "crypto-policies",
    )
)  # fmt: skip
"""Of ``/etc`` what libraries read; everybody may."""
DEVICES = (
    "null", "zero", "full", "random", "urandom", "tty", "shm", "kfd", "dri", "infiniband", "nvidia-caps",
)  # fmt: skip
_NAMED = (
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HF_HOME",
)
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "HF_HOME")


def readable(environment: Mapping[str, str]) -> list[Path]:
    """Programs, libraries and settings, Python's own among them. The working folder is not."""
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    # The engines' own package, wherever it was installed from.
    python.append(str(Path(__file__).resolve().parents[1]))
    here = os.getcwd()
    python += [entry for entry in sys.path if entry and os.path.realpath(entry) not in (here, "/")]
    libraries = [
        entry for entry in environment.get("LD_LIBRARY_PATH", "").split(":") if entry.startswith("/")
    ]
    named = [environment[name] for name in _NAMED if environment.get(name, "").startswith("/")]
    return [Path(entry) for entry in (*PROGRAMS, *SETTINGS, *python, *libraries, *named)]


def devices() -> list[Path]:
    """Devices that are opened for writing."""
    folder = Path("/dev")
    found = [folder / name for name in DEVICES]
    # The threads' names and the like, of this process alone.
    return [*found, *folder.glob("nvidia*"), Path(f"/proc/{os.getpid()}")]


def keep_caches_in(scratch: Path, environment: MutableMapping[str, str]) -> None:
    """Direct temporary files, and the default caches of libraries, to the run's own folder."""
    environment["TMPDIR"] = tempfile.tempdir = str(scratch)
    for name in _CACHES:
        environment.setdefault(name, str(scratch / name.lower()))
