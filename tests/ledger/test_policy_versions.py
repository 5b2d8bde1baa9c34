"""Which policy was in force last, across restarts."""

from __future__ import annotations

from tests.builders.ledger import Bench

from emep.ledger.policies.versions import keep_version, last_in_force
from emep.policy import parse_policy

A, B = parse_policy({"half_life": "1d"}), parse_policy({"half_life": "2d", "projects": {"x": {"weight": 3}}})


def test_a_fresh_ledger_knows_of_none(bench: Bench) -> None:
    assert last_in_force(bench.database) is None


def test_the_last_version_comes_back_whole(bench: Bench) -> None:
    keep_version(bench.database, A, announce=False)
    assert last_in_force(bench.database) == A
    bench.clock.advance(1)
    keep_version(bench.database, B, announce=True)
    assert last_in_force(bench.database) == B


def test_a_version_that_returns_while_no_server_runs_is_the_last(bench: Bench) -> None:
    for policy in (A, B, A):
        bench.clock.advance(1)
        keep_version(bench.database, policy, announce=False)  # each at a start of its own
    assert last_in_force(bench.database) == A


def test_a_start_with_the_same_file_changes_nothing(bench: Bench) -> None:
    keep_version(bench.database, A, announce=False)
    before = bench.ledger.jobs.changes(0).cursor
    keep_version(bench.database, A, announce=False)
    assert bench.ledger.jobs.changes(0).cursor == before
