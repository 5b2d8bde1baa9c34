"""The questions that the core, the ledger and the simulator ask of a policy."""

from __future__ import annotations

import pickle

import pytest

from emep.policy import Policy, default_policy, parse_policy


@pytest.mark.parametrize(
    ("queue", "name", "victim_queue", "victim", "may"),
    [
        ("merge", "critical", "merge", "normal", True),
        ("merge", "critical", "merge", "low", True),
        ("merge", "critical", "merge", "high", False),
        ("merge", "high", "merge", "normal", True),
        ("merge", "normal", "merge", "low", False),
        ("merge", "critical", "merge", "critical", False),
        # Evaluation neither preempts nor is preempted, within its queue and across.
        ("eval", "high", "eval", "low", False),
        ("eval", "high", "merge", "low", False),
        ("merge", "critical", "eval", "low", False),
        # Serving is a victim of realtime only, within its queue.
        ("inference", "realtime", "inference", "normal", True),
        ("merge", "critical", "inference", "normal", False),
        # Across queues the tiers decide: P0 over P1, P2, P3; P0 never a victim.
        ("inference", "realtime", "merge", "high", True),
        ("inference", "realtime", "merge", "critical", False),
        ("merge", "critical", "inference", "realtime", False),
        ("inference", "normal", "merge", "low", True),
        ("inference", "normal", "merge", "normal", False),
        # Aliases stand for their class on either side; what is unknown preempts nothing.
        ("merge", "critical", "merge", "medium", True),
        ("inference", "medium", "merge", "low", True),
        ("nowhere", "critical", "merge", "low", False),
        ("merge", "realtime", "merge", "low", False),
    ],
)
def test_who_may_preempt_whom_by_default(
    queue: str, name: str, victim_queue: str, victim: str, may: bool
) -> None:
    assert default_policy().may_preempt(queue, name, victim_queue, victim) is may


def test_without_preemption_across_queues_each_queue_keeps_to_itself() -> None:
    policy = parse_policy({"preemption": {"across_queues": False}})
    assert not policy.may_preempt("inference", "realtime", "merge", "low")
    assert policy.may_preempt("inference", "realtime", "inference", "normal")


def test_a_queue_without_a_matrix_may_still_offer_its_jobs_as_victims_when_told_so() -> None:
    scavenger = {"queues": {"scavenger": {"classes": ["low"], "preemptible": True}}}
    assert parse_policy(scavenger).may_preempt("merge", "high", "scavenger", "low")
    assert not parse_policy({"queues": {"quiet": {"classes": ["low"]}}}).may_preempt(
        "merge", "high", "quiet", "low"
    )


def test_a_class_in_no_tier_is_seen_by_its_own_queue_only() -> None:
    policy = parse_policy(
        {
            "classes": {"urgent": 500},
            "queues": {"merge": {"classes": ["urgent", "low"], "preempts": {"urgent": ["low"]}}},
        }
    )
    assert policy.tier("urgent") is None
    assert policy.may_preempt("merge", "urgent", "merge", "low")
    assert not policy.may_preempt("inference", "realtime", "merge", "urgent")


def test_restricted_classes_take_a_listed_dag_or_a_listed_role() -> None:
    policy = default_policy()
    assert policy.may_use_class("critical", "emep_regression_gate", [])
    assert policy.may_use_class("critical", "emep_merge", ["Viewer", "Op"])
    assert not policy.may_use_class("critical", "emep_merge", ["User"])
    assert not policy.may_use_class("realtime", "emep_regression_gate", ["User"])
    assert policy.may_use_class("high", None, [])


def test_projects_users_and_weights_default_to_one_and_nest() -> None:
    policy = parse_policy(
        {
            "projects": {
                "org": {"weight": 3, "users": {"ann": {"weight": 2}}, "projects": {"team": {"weight": 0}}}
            }
        }
    )
    assert [policy.project_weight(path) for path in ("org", "org/team", "org/other", "new")] == [3, 0, 1, 1]
    assert [policy.user_weight("org", user) for user in ("ann", "ben")] == [2, 1]
    assert [path for path, _ in policy.project_chain("org/team/deep")] == ["org", "org/team"]


def test_the_nearest_list_of_members_decides_who_may_charge() -> None:
    policy = parse_policy(
        {"projects": {"org": {"members": ["ann"], "projects": {"team": {"members": ["ben"]}, "lab": {}}}}}
    )
    assert policy.may_charge("org", "ann")
    assert not policy.may_charge("org", "ben")
    assert policy.may_charge("org/team", "ben")
    assert not policy.may_charge("org/team", "ann")
    assert policy.may_charge("org/lab", "ann")
    assert not policy.may_charge("org/lab/new", "ben")
    assert policy.may_charge("open", "anyone")


def test_billing_knows_a_product_label_by_its_short_name() -> None:
    policy = parse_policy({"gpu_billing": {"H100": 1.5, "A100": 0.5, "NVIDIA-H100-80GB-HBM3": 2}})
    assert policy.billing("NVIDIA-H100-80GB-HBM3") == 2
    assert policy.billing("NVIDIA-H100-PCIe") == 1.5
    assert policy.billing("A100") == 0.5
    assert policy.billing("A1000") == 1
    assert policy.billing("") == 1


def test_a_job_without_a_class_gets_normal_or_the_lowest_there_is() -> None:
    policy = default_policy()
    assert policy.queues["merge"].default_class == "normal"
    assert policy.queues["artifact"].default_class == "low"


def test_the_simulator_sees_time_limits_only_where_the_file_names_them() -> None:
    policy = parse_policy({"queues": {"merge": {"pending_ttl": "1h"}}}).for_simulation()
    assert policy.queues["merge"].pending_ttl == 3600
    assert policy.queues["merge"].default_max_duration is None
    assert policy.queues["eval"].pending_ttl is None
    assert default_policy().for_simulation().queues["merge"].pending_ttl is None


def test_an_operators_weights_go_over_the_files() -> None:
    policy = default_policy().with_weights({"queue:eval": 4, "project:org/team": 3, "user:org/team/ann": 2})
    assert policy.queue_weight("eval") == 4
    assert policy.project_weight("org/team") == 3
    assert policy.project_weight("org") == 1
    assert policy.user_weight("org/team", "ann") == 2
    assert default_policy().queue_weight("eval") == 1


@pytest.mark.parametrize(
    ("entity", "words"),
    [
        ("queue:evl", "did you mean 'eval'"),
        ("team", "queue:NAME"),
        ("user:ann", "user:PROJECT/NAME"),
        ("project:", "project:PATH"),
        ("pool:x", "use queue, project or user"),
    ],
)
def test_an_override_of_something_else_is_refused(entity: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        default_policy().with_weights({entity: 1})


def test_a_weight_below_zero_is_refused_in_an_override() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        default_policy().with_weights({"project:a": -1})


def test_a_policy_travels_between_processes_and_answers_the_same() -> None:
    copy: Policy = pickle.loads(pickle.dumps(default_policy()))  # noqa: S301 - its own bytes
    assert copy == default_policy()
    assert copy.may_preempt("merge", "critical", "merge", "low")
