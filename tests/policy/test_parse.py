"""What a policy file may say, and what it is told when it says something else."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from emep.policy import (
    Policy,
    PolicyError,
    default_policy,
    load_policy,
    parse_policy,
    parse_policy_text,
)
from emep.policy.load import load_preset, preset_names

ROOT = Path(__file__).parents[2]


def said(text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        parse_policy_text(text, source="p.yaml")
    return str(caught.value)


def test_an_empty_file_is_the_default_policy() -> None:
    assert parse_policy_text("", source="p.yaml") == default_policy()
    assert parse_policy({}) == default_policy()


def test_the_default_policy_is_the_contracts_table() -> None:
    policy = default_policy()
    assert policy.classes == {"realtime": 10000, "critical": 1000, "high": 100, "normal": 10, "low": 1}
    assert [policy.queues[name].weight for name in ("merge", "eval", "inference")] == [2, 1, 3]
    assert [
        policy.queues[name].pending_ttl for name in ("merge", "eval", "inference", "artifact", "tracker")
    ] == [86400, 172800, None, 3600, 300]
    assert policy.queues["merge"].classes == ("critical", "high", "normal", "low")
    assert policy.queues["inference"].classes == ("realtime", "normal")
    assert policy.half_life == 7 * 86400
    assert policy.entry_charge == 60
    assert policy.reservations == 1
    assert policy.preemption.grace_period == 120
    assert policy.lease.expiry == 60
    assert policy.lease.start_deadline == 600
    assert policy.retries.max_infrastructure == 5


def test_the_deployed_file_is_the_default_policy_with_comments() -> None:
    deployed = load_policy(ROOT / "include" / "policy.yaml")
    assert deployed == default_policy()


def test_the_contracts_example_file_is_accepted_whole() -> None:
    policy = parse_policy_text(
        """
half_life: 7d
entry_charge: 60s
reservations: all
order: shortest
starvation_bound: 4h
preemption: {grace_period: 120s, min_runtime: 0s, across_queues: true}
simulation: {checkpoint_time: 0s, restart_time: 0s}
tiers: {P0: [realtime, critical], P1: [high], P2: [normal], P3: [low]}
lease: {heartbeat: 10s, expiry: 60s, start_deadline: 10m, max_silence: 10m}
health: {report_every: 10s, failed_checks: 3, good_checks: 3}
retries: {max: 3, backoff: 30s, max_backoff: 30m, max_infrastructure: 5}
limits: {pending_jobs: 500}
restricted_classes:
  critical: {dags: [emep_regression_gate], roles: [Admin, Op]}
  realtime: {roles: [Admin, Op]}
node_labels: {gpu_type: [nvidia.com/gpu.product], nvlink_group_id: [emep/nvlink-group, nvidia.com/gpu.clique],
  rack_id: [emep/rack, topology.kubernetes.io/zone], block_id: [emep/block]}
classes: {realtime: 10000, critical: 1000, high: 100, normal: 10, low: 1}
queues:
  merge: {weight: 2.0, classes: [critical, high, normal, low],
          preempts: {critical: [normal, low], high: [normal, low]},
          preemptible: true, pending_ttl: 24h, default_max_duration: 12h, pools: [default], placement: pack}
projects:
  team-a: {weight: 40, max_gpus: 64, guaranteed_gpus: {default: 16}, members: [alice, bob],
           users: {alice: {weight: 2}}, projects: {vision: {weight: 1}}}
gpu_billing: {H100: 1.0, A100: 0.5}
"""
    )
    assert policy.reservations is None
    assert policy.limits.pending_jobs == 500
    assert policy.starvation_bound == 4 * 3600
    assert policy.project("team-a/vision") is not None
    assert policy.user_weight("team-a", "alice") == 2
    assert policy.billing("A100") == 0.5
    assert policy.queues["eval"] == default_policy().queues["eval"]


def test_a_queue_keeps_what_its_file_leaves_out() -> None:
    policy = parse_policy({"queues": {"merge": {"weight": 5, "pending_ttl": None}}})
    assert policy.queues["merge"].weight == 5
    assert policy.queues["merge"].pending_ttl is None
    assert policy.queues["merge"].preempts == default_policy().queues["merge"].preempts


def test_a_queue_set_to_nothing_is_gone() -> None:
    assert "tracker" not in parse_policy({"queues": {"tracker": None}}).queues


def test_medium_is_another_name_of_normal_wherever_a_class_is_named() -> None:
    policy = parse_policy(
        {"queues": {"merge": {"classes": ["high", "medium"], "preempts": {"high": ["medium"]}}}}
    )
    assert policy.queues["merge"].classes == ("high", "normal")
    assert policy.queues["merge"].preempts == {"high": ("normal",)}
    assert policy.resolve_class("merge", "medium") == "normal"
    assert policy.class_value("medium") == 10


def test_a_queue_that_loses_classes_loses_their_part_of_the_matrix() -> None:
    policy = parse_policy({"queues": {"merge": {"classes": ["high", "low"]}}})
    assert policy.queues["merge"].preempts == {"high": ("low",)}


def test_a_class_taken_out_of_the_policy_leaves_tiers_queues_and_restrictions() -> None:
    policy = parse_policy({"classes": {"critical": None}})
    assert "critical" not in policy.queues["merge"].classes
    assert "critical" not in policy.tiers["P0"]
    assert "critical" not in policy.restricted_classes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "quues: {}",
            "quues: unknown key 'quues': did you mean 'queues'?",
        ),
        (
            "half_life: 7d\nqueues:\n  merge:\n    wieght: 2",
            "p.yaml:4: queues.merge.wieght: unknown key 'wieght': did you mean 'weight'?",
        ),
        (
            "queues: {merge: {preempts: {critical: [normal, lwo]}}}",
            "queues.merge.preempts.critical[1]: unknown class 'lwo': did you mean 'low'?",
        ),
        (
            "queues: {merge: {classes: [critical, hihg]}}",
            "queues.merge.classes[1]: unknown class 'hihg': did you mean 'high'?",
        ),
        (
            "queues: {merge: {weight: -1}}",
            "queues.merge.weight: must be 0 or more, not -1",
        ),
        (
            "projects: {a: {users: {bob: {weight: -0.5}}}}",
            "projects.a.users.bob.weight: must be 0 or more, not -0.5",
        ),
        (
            "projects: {a: {projects: {b: {max_gpu: 4}}}}",
            "projects.a.projects.b.max_gpu: unknown key 'max_gpu': did you mean 'max_gpus'?",
        ),
        (
            "tiers: {P0: [critical], P1: [high, critical]}",
            "tiers.P1[1]: class 'critical' is in tier P0 already: take it out of one of them",
        ),
        (
            "reservations: -1",
            "reservations: must be 0 or more, not -1",
        ),
        (
            "reservations: al",
            "reservations: expected a whole number or all, not 'al': did you mean 'all'?",
        ),
        (
            "reservations: 1.5",
            "reservations: expected a whole number, not 1.5",
        ),
        (
            "reservations: true",
            "reservations: expected a whole number, not True",
        ),
        (
            "half_life: 7x",
            "half_life: a duration is seconds or text such as 30m, 2h, 7d, not '7x'",
        ),
        (
            "half_life: -1",
            "half_life: a duration is a finite number of seconds, 0 or more, not -1",
        ),
        (
            "order: shortst",
            "order: unknown value 'shortst': did you mean 'shortest'?",
        ),
        (
            "preemption: {across_queues: 1}",
            "preemption.across_queues: expected true or false, not 1",
        ),
        (
            "preemption: {grace: 1}",
            "preemption.grace: unknown key 'grace': use one of grace_period, min_runtime, across_queues",
        ),
        (
            "queues: [merge]",
            "queues: expected a mapping of keys to values, not ['merge']",
        ),
        (
            "queues: {merge: {pools: []}}",
            "queues.merge.pools: is empty: name at least a pool, or all",
        ),
        (
            "queues: {merge: {placement: packed}}",
            "queues.merge.placement: unknown value 'packed': did you mean 'pack'?",
        ),
        (
            "classes: {high: .nan}",
            "classes.high: expected a number, not nan",
        ),
        (
            "classes: {medium: 3}",
            "classes.medium: 'medium' is another name of 'normal': choose a name of its own",
        ),
        (
            "projects: {a: {max_gpus: 4, guaranteed_gpus: {default: 5}}}",
            (
                "projects.a.guaranteed_gpus: guarantees 5 GPUs but max_gpus is 4: raise max_gpus or lower "
                "the guarantee"
            ),
        ),
        (
            "projects: {a: {max_gpus: 4, projects: {b: {guaranteed_gpus: {default: 5}}}}}",
            "projects.a.max_gpus: is 4, but projects below are guaranteed 5 GPUs: raise it or lower theirs",
        ),
        (
            "projects: {a/b: {weight: 1}}",
            "projects.a/b: a nested project stands under its parent: a: {projects: {b: ...}}",
        ),
        (
            "projects: {a: {users: {x: {}}, projects: {x: {}}}}",
            (
                "projects.a.projects.x: is also the name of a user of the same project: rename one, their "
                "shares are siblings"
            ),
        ),
        (
            "projects: {a: {members: [x, x]}}",
            "projects.a.members[1]: 'x' is listed twice: name it once",
        ),
        (
            "queues: {eval: {guaranteed_gpus: {gold: 2}}}",
            (
                "queues.eval.guaranteed_gpus.gold: guarantees GPUs in pool 'gold', which is not the queue's: "
                "add it to queues.eval.pools"
            ),
        ),
        (
            "queues: {eval: {guaranteed_gpus: 2}}",
            "queues.eval.guaranteed_gpus: expected pool: GPUs, as in {default: 16}, not 2",
        ),
        (
            "lease: {expiry: 5s}",
            (
                "lease.expiry: is 5 s, not more than a heartbeat of 10 s: every lease would be lost, make it "
                "several heartbeats"
            ),
        ),
        (
            "retries: {backoff: 1h}",
            "retries.max_backoff: is 1800 s, less than backoff (3600 s): raise it",
        ),
        (
            "node_labels: {rack: [x]}",
            "node_labels.rack: unknown key 'rack': did you mean 'rack_id'?",
        ),
        (
            "restricted_classes: {critical: {dag: [x]}}",
            "restricted_classes.critical.dag: unknown key 'dag': did you mean 'dags'?",
        ),
        (
            "restricted_classes: {vip: {roles: [Op]}}",
            "restricted_classes.vip: unknown class 'vip': use one of realtime, critical, high, normal, low",
        ),
        (
            "gpu_billing: {H100: cheap}",
            "gpu_billing.H100: expected a number, not 'cheap'",
        ),
        (
            "classes: {1: 5}",
            "classes: keys are text, not 1: put it in quotes",
        ),
        (
            "order: shortest\norder: submit_time",
            "p.yaml:2: order: is given twice: keep one",
        ),
        (
            "- a",
            "p.yaml: expected a mapping of keys to values, not ['a']",
        ),
    ],
)
def test_a_wrong_file_is_told_the_line_the_key_and_the_fix(text: str, expected: str) -> None:
    assert said(text) == (expected if expected.startswith("p.yaml") else f"p.yaml:1: {expected}")


def test_a_file_that_is_no_yaml_is_told_the_line() -> None:
    assert said("half_life: 7d\norder: [").startswith("p.yaml:2: is not YAML (")


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: 1",
        "a: &x {b: *x}",
        "queues: &q {merge: *q}",
        "!!python/object/apply:os.getcwd []",
        "half_life: 2026-01-01",
        "half_life: 2026-99-99",
        "half_life: 1" + "0" * 5000,
        "half_life: true",
        "classes: {high: [1]}",
        "queues: {merge: [weight]}",
        "projects: {a: {users: [ann]}}",
        "projects: {a: 3}",
        "tiers: [high]",
        "\x00",
        "null: 1",
    ],
)
def test_whatever_else_stands_in_a_file_is_told_in_one_line(text: str) -> None:
    assert said(text).startswith("p.yaml")
    assert "\n" not in said(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(tmp_path / "none.yaml")
    assert str(caught.value) == (
        f"{tmp_path / 'none.yaml'}: cannot be read (No such file or directory): name a readable YAML file"
    )


def test_an_error_survives_being_sent_to_another_process() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy({"queues": {"merge": {"weight": -1}}}, source="p.yaml")
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - its own bytes
    assert (str(copy), copy.path) == (str(caught.value), "queues.merge.weight")


@pytest.mark.parametrize(
    ("matrix", "path"),
    [
        ({"critical": ["critical"]}, "queues.merge.preempts.critical[0]"),
        ({"high": ["low"], "low": ["high"]}, "queues.merge.preempts.low[0]"),
        ({"critical": ["normal"], "normal": ["low"], "low": ["critical"]}, "queues.merge.preempts.low[0]"),
    ],
)
def test_preemption_in_a_circle_is_refused_at_the_entry_that_closes_it(
    matrix: dict[str, list[str]], path: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy({"queues": {"merge": {"preempts": matrix}}})
    assert caught.value.path == path


def test_a_circle_through_another_queues_tiers_is_refused_too() -> None:
    # batch: low preempts normal; across queues normal preempts low: batch/low, batch/normal, other/low, ...
    queues = {
        "batch": {"classes": ["normal", "low"], "preempts": {"low": ["normal"]}},
        "other": {"classes": ["normal", "low"], "preempts": {"low": ["normal"]}},
    }
    with pytest.raises(PolicyError) as caught:
        parse_policy({"queues": queues})
    assert caught.value.path in {"queues.batch.preempts.low[0]", "queues.other.preempts.low[0]"}
    assert (
        parse_policy({"queues": queues, "preemption": {"across_queues": False}}).queues["batch"].preemptible
    )


def test_what_describe_says_reads_back_as_the_same_policy_and_is_json() -> None:
    for policy in (
        default_policy(),
        parse_policy({"reservations": "all", "queues": {"x": {"pools": "all"}}}),
    ):
        again = parse_policy(json.loads(json.dumps(policy.describe())), base=Policy())
        assert again == policy


def test_every_preset_that_ships_is_valid() -> None:
    for name in preset_names():
        assert isinstance(load_preset(name), Policy)
    with pytest.raises(PolicyError, match="no such preset"):
        load_preset("nonsense")


def test_xids_are_numbers_with_an_action_each() -> None:
    policy = parse_policy_text('xids: {94: reset, "109": ignore}', source="p.yaml")
    assert policy.xids == {94: "reset", 109: "ignore"}
    assert parse_policy(policy.describe()).xids == policy.xids
    assert parse_policy({"xids": {94: None}}, base=policy).xids == {109: "ignore"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("xids: {94: shrug}", "xids.94: unknown value 'shrug'"),
        ("xids: {ecc: reset}", "xids.ecc: an Xid is a whole number above 0, not 'ecc'"),
        ("xids: {0: reset}", "xids.0: an Xid is a whole number above 0"),
        ("xids: [94]", "expected Xid: action, as in {94: reset}"),
        ("node_checks: {quick_failures: many}", "node_checks.quick_failures: expected a whole number"),
        ("node_checks: {within: soon}", "node_checks.within"),
    ],
)
def test_what_is_no_check_of_a_node_or_an_xid_is_refused_by_its_path(text: str, words: str) -> None:
    assert words in said(text)
