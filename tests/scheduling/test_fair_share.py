"""Deficits and the order of users in the fair tree."""

from __future__ import annotations

import math

import pytest
from tests.builders.scheduling import a_job, used

from emep.policy import parse_policy
from emep.scheduling.fair_share import Entity, FairTree


def queue_of(entity: Entity) -> str:
    while entity.parent is not None and entity.parent.parent is not None:
        entity = entity.parent
    return entity.label


def names(tree: FairTree) -> list[set[str]]:
    """Users of queue merge by name, those that tie together; the best first."""
    mine = (
        {entity.label.removeprefix("user ") for entity in tied if queue_of(entity) == "queue merge"}
        for tied in tree.classes()
    )
    return [tied for tied in mine if tied]


def test_deficits_are_those_of_the_worked_example() -> None:
    policy = parse_policy({"projects": {"a": {"weight": 40}, "b": {"weight": 35}, "c": {"weight": 25}}})
    tree = FairTree(
        policy, [used("merge", name, "u", hours) for name, hours in (("a", 60), ("b", 20), ("c", 20))]
    )
    deficits = [tree.deficit(tree.project("merge", name)) for name in "abc"]
    assert deficits == pytest.approx([-0.5, 0.428571, 0.2], abs=1e-6)


def test_users_and_sub_projects_are_siblings_and_ties_are_taken_together() -> None:
    """Shares and usage of the published Fair Tree example, one queue as its root."""
    projects = {
        "aA": {
            "weight": 40,
            "projects": {
                "aAA": {"weight": 30, "users": {"uAA1": {"weight": 1}}},
                "aAB": {"weight": 10, "users": {"uAB1": {"weight": 1}, "uAB2": {"weight": 1}}},
            },
        },
        "aB": {
            "weight": 60,
            "projects": {
                "aBA": {"weight": 25, "users": {"uBA1": {"weight": 1}}},
                "aBB": {"weight": 35, "users": {"uBB1": {"weight": 1}}},
            },
        },
        "aC": {"weight": 0, "users": {"uC1": {"weight": 0}}},
        "aE": {"weight": 10, "users": {"aE1": {"weight": 10}, "aE2": {"weight": 10}}},
        "aF": {"weight": 20, "users": {"uF1": {"weight": 10}, "uF2": {"weight": 20}}},
        "root": {"weight": 0},
    }
    policy = parse_policy(
        {"projects": {"org": {"projects": projects, "users": {"u1": {"weight": 10}, "u2": {"weight": 10}}}}}
    )
    usage = {
        ("org/aA/aAA", "uAA1"): 20,
        ("org/aA/aAB", "uAB1"): 25,
        ("org/aB/aBA", "uBA1"): 25,
        ("org/aC", "uC1"): 30,
        ("org", "u2"): 10,
    }
    tree = FairTree(
        policy, [used("merge", project, user, amount) for (project, user), amount in usage.items()]
    )
    known = {"uAA1", "uAB1", "uAB2", "uBA1", "uBB1", "uC1", "aE1", "aE2", "uF1", "uF2", "u1", "u2"}
    ranked = [tied & known for tied in names(tree)]
    assert [tied for tied in ranked if tied][:8] == [
        {"u1", "aE1", "aE2", "uF1", "uF2"},
        {"uBB1"},
        {"uBA1"},
        {"u2"},
        {"uAA1"},
        {"uAB2"},
        {"uAB1"},
        {"uC1"},
    ]


def test_nothing_consumed_by_any_sibling_is_deficit_0() -> None:
    tree = FairTree(parse_policy({}))
    tree.leaf("merge", "a", "u")
    assert tree.deficit(tree.project("merge", "a")) == 0.0


def test_weight_0_sorts_after_every_sibling_with_a_weight_however_much_they_used() -> None:
    policy = parse_policy({"projects": {"idle": {"weight": 0}, "busy": {"weight": 1}}})
    tree = FairTree(policy, [used("merge", "busy", "b", 1e9)])
    tree.leaf("merge", "idle", "i")
    order = [user for tied in names(tree) for user in sorted(tied)]
    assert order.index("b") < order.index("i")
    assert tree.deficit(tree.project("merge", "idle")) == -math.inf


def test_idle_siblings_count_in_shares() -> None:
    policy = parse_policy({"projects": {"a": {"weight": 1}, "b": {"weight": 1}, "idle": {"weight": 2}}})
    tree = FairTree(policy, [used("merge", "a", "u", 10), used("merge", "b", "u", 30)])
    # a's target: 1/4 of 40.
    assert tree.deficit(tree.project("merge", "a")) == pytest.approx(0.0)


def test_a_charge_moves_its_user_and_nobody_else() -> None:
    tree = FairTree(parse_policy({}), [used("merge", name, "u" + name, 10) for name in "abc"])
    assert [tied for tied in names(tree) if tied & {"ua", "ub", "uc"}] == [{"ua", "ub", "uc"}]
    tree.charge("merge", "b", "ub", 5)
    assert [tied & {"ua", "ub", "uc"} for tied in names(tree) if tied & {"ua", "ub", "uc"}] == [
        {"ua", "uc"},
        {"ub"},
    ]


def test_levels_are_told_from_the_queue_down() -> None:
    tree = FairTree(parse_policy({}), [used("merge", "org/team", "ann", 10)])
    job = a_job("x").of("org/team", "ann").build()
    assert [label for label, _ in tree.levels(job)] == [
        "queue merge",
        "project org",
        "project org/team",
        "user ann",
    ]


def test_what_is_not_asked_for_is_passed_over() -> None:
    tree = FairTree(
        parse_policy({}), [used("merge", name, "u" + name, 10 * place) for place, name in enumerate("abc")]
    )
    leaf = tree.leaf("merge", "b", "ub")
    wanted: dict[int, int] = {}
    entity = leaf
    while entity is not None:
        wanted[id(entity)] = 1
        entity = entity.parent  # type: ignore[assignment]
    assert [tied for tied in tree.classes(wanted)] == [[leaf]]
