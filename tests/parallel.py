"""How `pytest -n N` shares the tests out: by file, what shares an Airflow or a cluster together, long first.

A run takes as long as its last worker. So `LONG` names what takes minutes, in the order in which it starts;
all other files follow in the order of their names. A file of more than a minute belongs in the list.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

LONG: dict[str, tuple[str, ...]] = {
    "loop": ("tests/loop/",),
    "demo": ("tests/demo/test_command.py",),
    "pipeline": ("tests/pipeline/",),
    "chaos, a whole Airflow": ("tests/chaos/test_chaos.py::test_every_invariant_holds_with_a_whole_airflow",),
    "chaos": ("tests/chaos/test_chaos.py",),
    # Later than the others, as the cluster's binary may still be under construction.
    "cluster": ("tests/cluster/",),
    "pods, an Airflow": ("tests/kubernetes/test_airflow.py",),
    "pods": ("tests/kubernetes/",),
}
"""Groups by what the ids of their tests begin with; the first that fits. A group runs on one worker."""

ON_A_CLUSTER = ("pods, an Airflow", "cluster", "pods")
"""Each has a cluster of its own, unless one is given, whose namespace they would wipe for each other."""


def group_of(nodeid: str) -> str:
    """The tests that share a worker with this one: its group's name, or its file."""
    for name, beginnings in LONG.items():
        if nodeid.startswith(beginnings):
            one_cluster = name in ON_A_CLUSTER and os.environ.get("EMEP_TEST_KUBECONFIG")
            return ON_A_CLUSTER[0] if one_cluster else name
    return nodeid.split("::", 1)[0]


def _rank(nodeid: str) -> int:
    names = list(LONG)
    group = group_of(nodeid)
    return names.index(group) if group in names else len(names)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups first, where workers share the tests; else the order of the files stays."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of pytest-xdist that this module describes."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """Hands out whole groups, in the order in which they were collected."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def _reschedule(self, node: WorkerController) -> None:
            """Assigns the next group no earlier than a worker needs it.

            A worker begins its last test once it knows the next one. So what is assigned during a long last
            test waits behind it, and is best short: it comes from the end.
            """
            if node.shutting_down or self._pending_of(self.assigned_work[node]) > 1:
                return
            if self.workqueue and self._is_at_a_long_test(node):
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._reschedule(node)

        def _is_at_a_long_test(self, node: WorkerController) -> bool:
            left = (scope for scope, tests in self.assigned_work[node].items() if not all(tests.values()))
            return any(scope in LONG for scope in left)

    config.option.loadscopereorder = False
    return ByGroup(config, log)
