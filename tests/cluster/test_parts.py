"""Parts of the test cluster that need neither root nor a cluster."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from tests.cluster import access, binary, cgroups, fixtures, packages
from tests.cluster.images import _archive, _host_root
from tests.cluster.node import _toml
from tests.cluster.processes import Process, Register, this_process
from tests.cluster.settings import CannotBeHad, CannotPrepare, ClusterError, Settings
from tests.cluster.target import given


@pytest.fixture
def register(tmp_path: Path) -> Register:
    return Register(tmp_path, niceness=0)


def test_a_process_is_found_again_by_what_is_on_disk(register: Register, tmp_path: Path) -> None:
    started = register.start("sleeper", ["sleep", "60"])
    found = Register(tmp_path, niceness=0).latest("sleeper")
    assert found == started
    found.stop()
    assert not started.alive()
    assert register.running() == []


def test_a_stopped_process_ends_too(register: Register) -> None:
    sleeper = register.start("sleeper", ["sleep", "60"])
    sleeper.send(signal.SIGSTOP)
    sleeper.stop(grace_s=5)
    assert not sleeper.alive()


def test_a_pid_that_another_process_has_by_now_is_left_alone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        stranger = Process("earlier", child.pid, started=1)
        assert not stranger.alive()
        stranger.stop()
        assert child.poll() is None
    finally:
        child.communicate(b"\n")
    assert child.returncode == 0


def test_the_last_words_of_a_process_are_kept(register: Register) -> None:
    register.start("failing", ["sh", "-c", "echo one; echo two >&2; exit 1"]).wait(10)
    assert register.last_words("failing") == "one / two"


def test_this_process_is_alive() -> None:
    assert this_process("owner").pid == os.getpid()
    assert this_process("owner").alive()


def test_configuration_is_toml_that_a_parser_reads_back() -> None:
    document = {
        "version": 2,
        "plugins": {"io.x.cri": {"on": True, "cni": {"dir": 'a"b'}}},
        "grpc": {"address": "/x"},
    }
    assert tomllib.loads(_toml(document)) == document


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    part = tar.extractfile(name)
    assert part is not None
    return part.read()


def test_an_image_archive_names_its_layer_by_digest_and_is_the_same_twice() -> None:
    archive = _archive("localhost/x:1", _host_root(), ["/bin/true"])
    assert archive == _archive("localhost/x:1", _host_root(), ["/bin/true"])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        (manifest,) = json.loads(_read(tar, "manifest.json"))
        configuration = json.loads(_read(tar, manifest["Config"]))
    assert manifest["RepoTags"] == ["localhost/x:1"]
    assert [f"sha256:{layer.split('/')[0]}" for layer in manifest["Layers"]] == configuration["rootfs"][
        "diff_ids"
    ]
    assert configuration["config"]["Entrypoint"] == ["/bin/true"]


def _unified(root: Path, controllers: str) -> None:
    for group in (root, root / "emep-1-1"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text(controllers)


def test_version_2_control_groups_hand_every_controller_down(tmp_path: Path) -> None:
    _unified(tmp_path, "cpuset cpu io memory pids\n")
    cgroups.create("emep-1-1", tmp_path)
    for group in (tmp_path, tmp_path / "emep-1-1"):
        assert (group / "cgroup.subtree_control").read_text() == "+cpuset +cpu +io +memory +pids"


def test_version_2_control_groups_without_a_controller_are_named(tmp_path: Path) -> None:
    _unified(tmp_path, "cpu io\n")
    with pytest.raises(CannotBeHad, match="no cpuset, memory, pids controller"):
        cgroups.create("emep-1-1", tmp_path)


def test_no_group_is_removed_without_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the whole machine"):
        cgroups.remove("", tmp_path)


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"name": "../x"}, "cluster name"), ({"nodes": 0}, "nodes=0"), ({"node_grace_s": 5}, "node_grace_s=5")],
)
def test_settings_out_of_bounds_are_named(settings: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Settings(**settings)  # type: ignore[arg-type]


def test_rights_for_another_namespace_leave_none_in_the_first() -> None:
    documents = access.rights("emep-test")
    named = [d["metadata"].get("namespace") for d in documents] + [
        subject["namespace"] for d in documents for subject in d.get("subjects", [])
    ]
    assert {name for name in named if name} == {"emep-test"}
    (binding,) = (d for d in documents if d["kind"] == "ClusterRoleBinding")
    assert binding["metadata"]["name"] == "emep-nodes-emep-test"


def test_without_root_the_tests_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotBeHad, match="kubelets need root; EMEP_TEST_KUBECONFIG names another cluster"):
        packages.install()


def test_without_go_and_a_binary_the_tests_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(packages, "go_program", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CannotBeHad, match="no `go` was found"):
        packages.install()


def test_a_build_that_fails_tells_the_compilers_words_and_leaves_no_binary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(binary, "go_program", lambda: str(go))
    with pytest.raises(CannotPrepare, match="not built: no network"):
        binary.build()
    assert not binary.binary_path().exists()


def test_a_failed_preparation_skips_unless_a_cluster_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMEP_TEST_CLUSTER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no network"):
        fixtures._skip(CannotPrepare("no network"))
    monkeypatch.setenv("EMEP_TEST_CLUSTER", "required")
    with pytest.raises(CannotPrepare):
        fixtures._skip(CannotPrepare("no network"))
    with pytest.raises(pytest.skip.Exception, match="no root"):
        fixtures._skip(CannotBeHad("no root"))


def test_a_kubeconfig_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=f"EMEP_TEST_KUBECONFIG names {tmp_path / 'none'}"):
        given(tmp_path / "none")
