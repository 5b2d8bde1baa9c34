"""How the tests are shared out among workers: what stays together, what starts first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.parallel import LONG, group_of, pytest_collection_modifyitems, pytest_xdist_make_scheduler

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/ledger/test_ids.py::test_a", "tests/ledger/test_ids.py"),
        ("tests/ledger/test_ids.py::TestB::test_a[x::y]", "tests/ledger/test_ids.py"),
        ("tests/loop/test_kills.py::test_a", "loop"),
        ("tests/loop/test_gates.py::test_a", "loop"),
    ],
)
def test_a_file_is_one_group_and_a_folder_with_one_airflow_is_another(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_a_cluster_that_is_given_is_used_by_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [
        "tests/cluster/test_cluster.py::t",
        "tests/kubernetes/test_run.py::t",
        "tests/kubernetes/test_airflow.py::t",
    ]
    monkeypatch.delenv("EMEP_TEST_KUBECONFIG", raising=False)
    assert len({group_of(test) for test in tests}) == 3
    monkeypatch.setenv("EMEP_TEST_KUBECONFIG", "/some/file")
    assert len({group_of(test) for test in tests}) == 1


@pytest.mark.parametrize("beginning", [beginning for group in LONG.values() for beginning in group])
def test_what_the_list_of_long_groups_names_is_there(beginning: str) -> None:
    path, _, test = beginning.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test}" in (ROOT / path).read_text()


def test_long_groups_come_first_only_where_workers_share_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["tests/agent/test_a.py::t", "tests/loop/test_z.py::t", "tests/api/test_b.py::t"]
    items: Any = [SimpleNamespace(nodeid=name) for name in names]
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == names
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [names[1], names[0], names[2]]


class Worker:
    """What the scheduler sees of a worker."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_short_file_waits_behind_a_long_last_test_and_the_next_long_group_does_not() -> None:
    loop, chaos, demo = (
        "tests/loop/test_a.py::t",
        "tests/chaos/test_chaos.py::t",
        "tests/demo/test_command.py::t",
    )
    short = [f"tests/api/test_{number}.py::t" for number in range(3)]
    tests = [loop, chaos, demo, *short]
    config: Any = SimpleNamespace(
        option=SimpleNamespace(tx=["popen"] * 2, loadscopereorder=True), getvalue=lambda name: ["popen"] * 2
    )
    from xdist.remote import Producer

    scheduler = pytest_xdist_make_scheduler(config, Producer("test"))
    workers = [Worker("gw0"), Worker("gw1")]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    given = [[tests[index] for index in worker.given] for worker in workers]
    assert given == [[loop, short[2]], [chaos, short[1]]]
    scheduler.mark_test_complete(workers[0], tests.index(loop))
    assert tests[workers[0].given[-1]] == demo
    left = [tests[index] for worker in workers for index in worker.given]
    assert sorted(left) == sorted(set(left)), "no test runs twice"
