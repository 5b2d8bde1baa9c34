"""Fair share: known right orders, and what stands next to each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders.replay import Replay, work
from tests.builders.scheduling import JobBuilder, a_job, a_node, a_pool, a_snapshot, running, used

from emep.policy import Policy, parse_policy
from emep.scheduling.model import Plan, UsageRecord
from emep.scheduling.plan import plan

HOUR = 3600.0


def waiting_order(decided: Plan) -> list[str]:
    """Pending jobs, best first, by the positions that people are shown."""
    return [item.job_id for item in sorted(decided.waiting, key=lambda item: item.position)]


def plan_of(jobs: list[JobBuilder], usage: list[UsageRecord], policy: Policy) -> Plan:
    """The plan for jobs in front of a pool that is full until long after."""
    full = running(a_job("full").gpus(1).limit(1e9).queue("inference"), "n:0")
    decided = plan(a_snapshot([a_pool(1)], jobs, [full], usage), policy, 0.0)
    assert not decided.starts
    return decided


def order_of(jobs: list[JobBuilder], usage: list[UsageRecord], policy: Policy) -> list[str]:
    """The order of jobs that all wait."""
    return waiting_order(plan_of(jobs, usage, policy))


# ---- the tree ----

# name -> (shares, usage) for a user, (shares, children) for a project: Slurm's Fair Tree example.
TREE: dict[str, Any] = {
    "aA": (40, {"aAA": (30, {"uAA1": (1, 20)}), "aAB": (10, {"uAB1": (1, 25), "uAB2": (1, 0)})}),
    "aB": (60, {"aBA": (25, {"uBA1": (1, 25)}), "aBB": (35, {"uBB1": (1, 0)})}),
    "aC": (0, {"uC1": (0, 30)}),
    "aE": (10, {"aE1": (10, 0), "aE2": (10, 0)}),
    "aF": (20, {"uF1": (10, 0), "uF2": (20, 0)}),
    "u1": (10, 0),
    "u2": (10, 10),
}
TIED = ["u1", "aE1", "aE2", "uF1", "uF2"]
REST = ["uBB1", "uBA1", "u2", "uAA1", "uAB2", "uAB1", "uC1"]


def project_of(children: dict[str, Any], weight: float = 1.0) -> dict[str, Any]:
    """A policy's project with these users and sub-projects."""
    rules: dict[str, Any] = {"weight": weight, "users": {}, "projects": {}}
    for name, (shares, below) in children.items():
        if isinstance(below, dict):
            rules["projects"][name] = project_of(below, shares)
        else:
            rules["users"][name] = {"weight": shares}
    return rules


def leaves(children: dict[str, Any], path: str) -> dict[str, tuple[str, float]]:
    """User -> (project's path, usage)."""
    found: dict[str, tuple[str, float]] = {}
    for name, (_, below) in children.items():
        if isinstance(below, dict):
            found |= leaves(below, f"{path}/{name}")
        else:
            found[name] = (path, float(below))
    return found


def tree_order(tree: dict[str, Any], submit: dict[str, float], factor: float = 1.0) -> list[str]:
    users = leaves(tree, "root")
    jobs = [a_job(user).of(path, user).at(submit[user]) for user, (path, _) in users.items()]
    usage = [used("merge", path, user, amount * factor) for user, (path, amount) in users.items()]
    return order_of(jobs, usage, parse_policy({"projects": {"root": project_of(tree)}}))


def submitted(best_last: list[str]) -> dict[str, float]:
    """Submission times that would reverse the order, were it by time."""
    return {user: -float(place) for place, user in enumerate(best_last)}


def test_the_tree_orders_users_level_by_level() -> None:
    order = tree_order(TREE, submitted(TIED + REST))
    assert set(order[:5]) == set(TIED)
    assert order[5:] == REST


def test_those_that_tie_in_the_tree_go_by_submission_whatever_level_they_stand_on() -> None:
    for turn in range(5):
        expected = TIED[turn:] + TIED[:turn]
        submit = {user: float(place) for place, user in enumerate(expected + REST)}
        assert tree_order(TREE, submit)[:5] == expected


def test_the_trees_order_does_not_depend_on_the_unit_of_usage() -> None:
    orders = [tree_order(TREE, submitted(TIED + REST), factor) for factor in (1e-3, 1.0, 3600.0, 1e9)]
    assert all(order == orders[0] for order in orders)


def test_a_user_with_no_share_is_last_even_when_it_used_nothing() -> None:
    tree = {**TREE, "aC": (0, {"uC1": (0, 0)})}
    assert tree_order(tree, submitted(TIED + REST))[-1] == "uC1"


def test_users_with_no_share_are_last_among_their_own_siblings_only() -> None:
    tree = {"p": (1, {"a": (0, 0), "b": (1, 50)}), "q": (1, {"c": (1, 60)})}
    # p used 50 of 110, so it is before q; in p the weightless user comes after b, still before q's c.
    assert tree_order(tree, {"a": 0, "b": 1, "c": 2}) == ["b", "a", "c"]


def test_a_poor_branch_does_not_lift_its_user_over_a_rich_branch() -> None:
    # Within q, d has used nothing; but q as a whole is far over its share, and that is looked at first.
    tree = {"p": (1, {"a": (1, 10), "b": (1, 20)}), "q": (1, {"c": (1, 90), "d": (1, 0)})}
    assert tree_order(tree, {"a": 3, "b": 2, "c": 1, "d": 0}) == ["a", "b", "d", "c"]


def test_children_of_projects_that_tie_are_compared_in_one_round() -> None:
    # p and q have used the same for the same share: their users are compared across, not p's first.
    tree = {"p": (1, {"a": (1, 30), "b": (1, 10)}), "q": (1, {"c": (1, 25), "d": (1, 15)})}
    # Shares and usage inside p and q: a 0.5 of 0.75, b 0.5 of 0.25, c 0.5 of 0.625, d 0.5 of 0.375.
    assert tree_order(tree, {"a": 0, "b": 3, "c": 1, "d": 2}) == ["b", "d", "c", "a"]


def test_the_worked_example_of_three_projects() -> None:
    policy = parse_policy({"projects": {"a": {"weight": 40}, "b": {"weight": 35}, "c": {"weight": 25}}})
    usage = [used("merge", name, "", hours * HOUR) for name, hours in (("a", 60), ("b", 20), ("c", 20))]
    jobs = [a_job(name).of(name) for name in ("a", "b", "c")]
    decided = plan_of(jobs, usage, policy)
    assert waiting_order(decided) == ["b", "c", "a"]
    deficits = {item.job_id: item.score.deficit for item in decided.waiting}
    assert deficits["a"] == pytest.approx(-0.5, abs=1e-4)
    assert deficits["b"] == pytest.approx(0.4286, abs=1e-4)
    assert deficits["c"] == pytest.approx(0.2, abs=1e-4)
    scores = {item.job_id: item.score.score for item in decided.waiting}
    assert scores == pytest.approx({"a": 5.0, "b": 14.286, "c": 12.0}, abs=1e-2)


def test_queues_share_before_projects_do() -> None:
    # eval (weight 1) has used 10, merge (weight 2) 30: eval has had less of its share, whatever p used.
    usage = [used("merge", "p", "", 30), used("eval", "p", "", 10), used("eval", "q", "", 0)]
    jobs = [a_job("m").of("q").at(0), a_job("e").of("p").queue("eval").at(1)]
    assert order_of(jobs, usage, parse_policy({})) == ["e", "m"]


def test_usage_in_one_queue_does_not_count_in_another() -> None:
    # In merge p used more than q; in eval it is the other way round.
    usage = [used("merge", "p", "", 30), used("merge", "q", "", 10)]
    usage += [used("eval", "p", "", 5), used("eval", "q", "", 15)]
    jobs = [a_job(f"{queue}-{name}").of(name).queue(queue) for queue in ("merge", "eval") for name in "pq"]
    order = order_of(jobs, usage, parse_policy({}))
    assert [job for job in order if job.startswith("merge")] == ["merge-q", "merge-p"]
    assert [job for job in order if job.startswith("eval")] == ["eval-p", "eval-q"]


def test_idle_siblings_that_the_policy_names_count_in_the_shares() -> None:
    # One of five siblings used everything: its target is a fifth of that, so its deficit is 1 - 5 = -4.
    projects = {name: {"weight": 1} for name in "abcde"}
    decided = plan_of(
        [a_job("x").of("a")], [used("merge", "a", "", 100)], parse_policy({"projects": projects})
    )
    assert decided.waiting[0].score.deficit == pytest.approx(-4)
    assert decided.waiting[0].score.score == pytest.approx(10 * 0.25)


# ---- no inversion ----


@pytest.mark.parametrize(("above", "below"), [("critical", "low"), ("high", "normal"), ("normal", "low")])
def test_far_over_its_share_a_higher_class_still_goes_before_every_lower_one(above: str, below: str) -> None:
    # a has three times its target.
    usage = [used("merge", "a", "", 150), used("merge", "b", "", 0), used("merge", "c", "", 0)]
    jobs = [
        a_job("own").of("a").priority(below).at(0),
        a_job("theirs").of("b").priority(below).at(0),
        a_job("urgent").of("a").priority(above).at(9),
    ]
    assert order_of(jobs, usage, parse_policy({})) == ["urgent", "theirs", "own"]


def test_the_score_of_an_entity_over_its_share_never_turns_its_own_classes_round() -> None:
    usage = [used("merge", "a", "", 1000), used("merge", "b", "", 1)]
    jobs = [a_job(name).of("a").priority(name) for name in ("critical", "high", "normal", "low")]
    decided = plan_of(jobs, usage, parse_policy({}))
    scores = {item.job_id: item.score.score for item in decided.waiting}
    assert scores == pytest.approx({"critical": 250, "high": 25, "normal": 2.5, "low": 0.25})


def test_the_score_is_clamped_above_for_an_entity_that_used_nothing() -> None:
    usage = [used("merge", "a", "", 1000), used("merge", "b", "", 0)]
    decided = plan_of([a_job("x").of("b")], usage, parse_policy({}))
    assert decided.waiting[0].score.deficit == pytest.approx(1)
    assert decided.waiting[0].score.score == pytest.approx(20)


def test_a_weight_of_zero_scores_with_the_clamps_lowest() -> None:
    policy = parse_policy({"projects": {"a": {"weight": 0}}})
    full = running(a_job("full").gpus(1).limit(1e9).queue("inference"), "n:0")
    usage = [used("merge", "b", "", 5)]
    decided = plan(
        a_snapshot([a_pool(1)], [a_job("x").of("a"), a_job("y").of("b")], [full], usage), policy, 0.0
    )
    assert waiting_order(decided) == ["y", "x"]
    assert {item.job_id: item.score.score for item in decided.waiting}["x"] == pytest.approx(2.5)


# ---- entry charge ----


def burst(policy: Policy, gpus: int = 4, entities: dict[str, int] | None = None, **fields: Any) -> list[str]:
    """Projects of what starts, in order, when everything arrives in one instant."""
    jobs = [
        a_job(f"{project}{number:03}").of(project).having(**fields)
        for project, count in (entities or {"a": 100, "b": 1}).items()
        for number in range(count)
    ]
    decided = plan(a_snapshot([a_pool(gpus)], jobs), policy, 0.0)
    assert len(decided.starts) == gpus
    return [start.job_id.rstrip("0123456789") for start in decided.starts]


def test_of_a_hundred_jobs_and_one_the_one_is_among_the_first_two_to_start() -> None:
    assert "b" in burst(parse_policy({}))[:2]


def test_without_an_entry_charge_a_burst_is_taken_by_name() -> None:
    assert burst(parse_policy({"entry_charge": 0})) == ["a", "a", "a", "a"]


def test_a_burst_is_shared_by_weight_within_one_plan() -> None:
    policy = parse_policy({"projects": {"a": {"weight": 3}, "b": {"weight": 1}}})
    started = burst(policy, gpus=8, entities={"a": 50, "b": 50})
    assert started.count("a") == 6
    assert burst(policy, gpus=4, entities={"a": 50, "b": 50}).count("b") == 1


def test_the_entry_charge_grows_with_the_gpus_of_a_job() -> None:
    # Each job of a takes 4 GPUs, each of b one: after one of a, b may start four before they are level.
    jobs = [a_job(f"a{number}").of("a").gpus(4) for number in range(9)]
    jobs += [a_job(f"b{number}").of("b").gpus(1) for number in range(9)]
    decided = plan(a_snapshot([a_pool(16)], jobs), parse_policy({}), 0.0)
    assert [start.job_id[0] for start in decided.starts] == list("abbbbabbbb")


def test_what_started_a_moment_ago_counts_its_entry_charge_in_the_next_plan() -> None:
    # a's job has run for one second and used one GPU-second; b has used 30 GPU-seconds with nothing running.
    held = running(a_job("a0").of("a").limit(1e6), "n:0", since=0)
    jobs = [a_job("a1").of("a").at(1), a_job("b1").of("b").at(1)]
    usage = [used("merge", "a", "", 1.0), used("merge", "b", "", 30.0)]
    decided = plan(a_snapshot([a_pool(2)], jobs, [held], usage), parse_policy({}), 1.0)
    assert [start.job_id for start in decided.starts] == ["b1"]


def test_past_its_entry_charge_only_what_really_ran_counts() -> None:
    # After 90 s a's job has used 90 GPU-seconds, more than the charge: nothing is added on top.
    held = running(a_job("a0").of("a").limit(1e6), "n:0", since=0)
    jobs = [a_job("a1").of("a").at(90), a_job("b1").of("b").at(90)]
    usage = [used("merge", "a", "", 90.0), used("merge", "b", "", 100.0)]
    decided = plan(a_snapshot([a_pool(2)], jobs, [held], usage), parse_policy({"half_life": 0}), 90.0)
    assert [start.job_id for start in decided.starts] == ["a1"]


def test_the_entry_charge_is_billed_by_the_type_of_gpu() -> None:
    # A job of a is charged 30 on its A100, one of b 60 on its H100.
    policy = parse_policy({"gpu_billing": {"H100": 1.0, "A100": 0.5}})
    nodes = [a_node(kind).gpus(9, kind).nvlink_groups_of(9) for kind in ("A100", "H100")]
    jobs = [a_job(f"a{number}").of("a").having(gpu_type="A100") for number in range(6)]
    jobs += [a_job(f"b{number}").of("b").having(gpu_type="H100") for number in range(3)]
    decided = plan(a_snapshot(nodes, jobs), policy, 0.0)
    assert [start.job_id[0] for start in decided.starts] == list("abaabaaba")


def test_users_of_one_project_share_a_burst_too() -> None:
    jobs = [a_job(f"ann{number}").of("p", "ann") for number in range(50)]
    jobs += [a_job("ben").of("p", "ben")]
    decided = plan(a_snapshot([a_pool(4)], jobs), parse_policy({}), 0.0)
    assert "ben" in [start.job_id for start in decided.starts][:2]


# ---- decay ----


def test_a_hundred_gpu_hours_one_half_life_ago_weigh_as_fifty_now() -> None:
    # a uses 100 GPU-hours, ending one half-life (1000 h) before the question; b 49 or 51 right before it.
    policy = parse_policy({"half_life": "1000h", "entry_charge": 0})
    for hours, first in ((49.0, "b-next"), (51.0, "a-next")):
        asked = 1001 * HOUR
        works = [
            work("a-past", 0, 100, HOUR, project="a"),
            work("b-past", asked - hours / 100 * HOUR, 100, hours / 100 * HOUR, project="b"),
            work("block", asked, 100, 10.0, project="c", priority="high"),
            work("a-next", asked, 100, 5.0, project="a"),
            work("b-next", asked, 100, 5.0, project="b"),
        ]
        history = Replay([a_pool(100)], policy, works).run()
        assert history.start_of(first) == asked + 10


def test_without_decay_old_usage_weighs_as_new() -> None:
    policy = parse_policy({"half_life": 0, "entry_charge": 0})
    asked = 5001 * HOUR
    works = [
        work("a-past", 0, 10, HOUR, project="a"),
        work("b-past", asked - 0.9 * HOUR, 10, 0.9 * HOUR, project="b"),
        work("a-next", asked, 10, 5.0, project="a"),
        work("b-next", asked, 10, 5.0, project="b"),
    ]
    assert Replay([a_pool(10)], policy, works).run().start_of("b-next") == asked
