"""The pytest fixtures `cluster` and `local_cluster`; tests/conftest.py makes them known to every test.

Taken, in this order: the cluster that `EMEP_TEST_KUBECONFIG` names, `kind` where Docker runs, a cluster of
this machine's own (root and Go). Where none can be had the tests skip with one sentence; so they do where
its binary was never built, because nobody who types `make test` expects ten minutes of compiling. With
`EMEP_TEST_CLUSTER=required`, as in CI, it is built then, and a failed preparation is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.binary import binary_path
from tests.cluster.local import LocalCluster, prepare
from tests.cluster.packages import why_not
from tests.cluster.settings import CannotBeHad, CannotPrepare, Settings
from tests.cluster.target import Target, given, kind, kind_is_here, of_local

NOT_BUILT = "No Kubernetes for the tests yet: `make cluster ARGS=prepare` builds it once, in ten minutes."


def _prepared() -> None:
    """Packages, binary and images. Raises CannotBeHad, CannotPrepare."""
    if os.environ.get("EMEP_TEST_CLUSTER") != "required" and why_not() is None and not binary_path().exists():
        raise CannotBeHad(NOT_BUILT)
    prepare()


def _start() -> Iterator[Target]:
    named = os.environ.get("EMEP_TEST_KUBECONFIG")
    if named:
        yield given(Path(named))
    elif kind_is_here():
        with kind(f"emep-test-{os.getpid()}") as target:
            yield target
    else:
        _prepared()
        local = LocalCluster.new(Settings(name=f"test-{os.getpid()}"), owned=True)
        local.up()
        try:
            yield of_local(local)
        finally:
            local.down()


def _skip(error: CannotBeHad | CannotPrepare) -> None:
    """Ends a test that has no cluster. Raises the error if this machine ought to have had one."""
    if isinstance(error, CannotPrepare) and os.environ.get("EMEP_TEST_CLUSTER") == "required":
        raise error
    pytest.skip(str(error))


def without_a_cluster() -> None:
    """Skips a test that would start a cluster of this machine's own, where none can be had."""
    try:
        _prepared()
    except (CannotBeHad, CannotPrepare) as error:
        _skip(error)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Target]:
    """A Kubernetes with at least one node, kept for the whole run; tests clean up after themselves."""
    try:
        yield from _start()
    except (CannotBeHad, CannotPrepare) as error:
        _skip(error)


@pytest.fixture(scope="session")
def local_cluster(cluster: Target) -> LocalCluster:
    """The same, for tests that stop kubelets or the API server."""
    if cluster.local is None:
        pytest.skip("This test stops parts of the cluster, which only a cluster of tests/cluster allows.")
    return cluster.local
