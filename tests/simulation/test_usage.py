from __future__ import annotations

import math

import pytest

from emep.simulation.run.usage import UsageAccounts

LEAF = ("merge", "team", "ann")


def consumed(accounts: UsageAccounts, now: float) -> float:
    return sum(record.gpu_seconds for record in accounts.records(now))


def test_without_decay_consumption_is_gpus_times_seconds() -> None:
    accounts = UsageAccounts(half_life=0.0)
    accounts.add_rate(LEAF, 4.0, 10.0)
    accounts.add_rate(LEAF, 2.0, 20.0)
    accounts.add_rate(LEAF, -4.0, 30.0)
    assert consumed(accounts, 50.0) == 4 * 20 + 2 * 30


def test_what_was_consumed_a_half_life_ago_weighs_half() -> None:
    accounts = UsageAccounts(half_life=3600.0)
    accounts.add_rate(LEAF, 1.0, 0.0)
    accounts.add_rate(LEAF, -1.0, 1e-3)
    assert consumed(accounts, 3600.001) == pytest.approx(consumed(accounts, 1e-3) / 2, rel=1e-9)


def test_what_runs_for_ever_settles_at_rate_times_half_life_over_ln_2() -> None:
    accounts = UsageAccounts(half_life=100.0)
    accounts.add_rate(LEAF, 3.0, 0.0)
    assert consumed(accounts, 100_000.0) == pytest.approx(3.0 * 100.0 / math.log(2.0))


def test_looking_more_often_changes_nothing() -> None:
    seldom, often = UsageAccounts(half_life=500.0), UsageAccounts(half_life=500.0)
    for accounts in (seldom, often):
        accounts.add_rate(LEAF, 2.0, 0.0)
    for now in range(1, 1000):
        often.add_rate(LEAF, 1.0, float(now))
        often.add_rate(LEAF, -1.0, float(now))
    assert consumed(often, 1000.0) == pytest.approx(consumed(seldom, 1000.0), rel=1e-12)


def test_an_account_is_known_before_it_consumes_anything() -> None:
    accounts = UsageAccounts(half_life=0.0)
    accounts.know(LEAF, 5.0)
    (record,) = accounts.records(9.0)
    assert (record.queue, record.project, record.user, record.gpu_seconds) == (*LEAF, 0.0)


def test_fractions_of_billing_leave_no_rate_behind() -> None:
    accounts = UsageAccounts(half_life=0.0)
    for number in range(3):
        accounts.add_rate(LEAF, 0.1, float(number))
    for number in range(3):
        accounts.add_rate(LEAF, -0.1, 10.0 + number)
    assert consumed(accounts, 1e9) == consumed(accounts, 20.0)
