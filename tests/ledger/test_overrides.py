"""Weights that operators set over the policy file's: in force everywhere, and the tree that shows them."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from tests.builders.ledger import Bench

from emep.ledger.policies.effective import EffectivePolicy
from emep.ledger.policies.versions import digest_of
from emep.ledger.service import LedgerService
from emep.ledger.store.tables import Event, FairShareOverride, PolicyVersion
from emep.policy import parse_policy
from emep.policy.load import parse_policy_text
from emep.wire.entities import parse_entity
from emep.wire.errors import InvalidError, NotFoundError
from emep.wire.operations import ShareView

POLICY = parse_policy_text(
    """
half_life: 0
entry_charge: 0s
projects:
  org: {weight: 3, projects: {team: {weight: 1, members: [alice, bob], users: {alice: {weight: 2}}}}}
  other: {weight: 1}
""",
    "test policy",
)
HOUR = 3600.0


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.policy = POLICY
    return bench


def row(bench: Bench, entity: str, queue: str = "merge") -> ShareView:
    """The one row of an entity in a queue's tree."""
    (found,) = [
        one for one in bench.ledger.shares.fair_share().entities if (one.entity, one.queue) == (entity, queue)
    ]
    return found


def ran(bench: Bench, hours: float, **fields: Any) -> None:
    """A job that has held its GPUs for so long."""
    job = bench.running(max_duration="90d", **fields)
    bench.alive(hours * HOUR, job, step=60.0)
    bench.report("n0")
    bench.complete(job)


# ---- the policy in force ---------------------------------------------------------------------------------


def test_a_weight_that_is_set_is_the_planner_s_at_once_and_the_file_s_after_it_is_unset(bench: Bench) -> None:
    override = bench.ledger.shares.set_weight("org/team@alice", 5, actor="op", reason="deadline")
    assert (override.entity, override.weight, override.set_by, override.reason, override.effective) == (
        "org/team@alice", 5.0, "op", "deadline", True,
    )  # fmt: skip
    bench.ledger.shares.set_weight("queue:merge", 7, actor="op")
    bench.ledger.shares.set_weight("org", 0, actor="op")
    policy = bench.ledger.context.policy
    assert policy.user_weight("org/team", "alice") == 5.0
    assert (policy.queue_weight("merge"), policy.project_weight("org")) == (7.0, 0.0)
    assert policy.project("org/team").members == ("alice", "bob"), "nothing else has changed"
    for entity in ("org/team@alice", "queue:merge", "org"):
        bench.ledger.shares.unset_weight(entity, actor="op", reason="over")
    assert bench.ledger.context.policy == POLICY
    with bench.database.read() as session:
        seen = session.scalars(select(Event).where(Event.event.in_(["share_set", "share_unset"]))).all()
    assert [(one.event, one.actor, one.data["weight"], one.data["weight_before"]) for one in seen] == [
        ("share_set", "op", 5.0, None),
        ("share_set", "op", 7.0, None),
        ("share_set", "op", 0.0, None),
        ("share_unset", "op", None, 5.0),
        ("share_unset", "op", None, 7.0),
        ("share_unset", "op", None, 0.0),
    ]
    assert seen[0].reason == "deadline"


def test_another_server_has_it_as_soon_as_it_looks(bench: Bench) -> None:
    other = LedgerService(bench.database, lambda: bench.policy, bench.ledger.context.settings)
    bench.ledger.shares.set_weight("org", 9, actor="op")
    assert other.context.policy.project_weight("org") == 3.0
    other.context.policies.refresh()
    assert other.context.policy.project_weight("org") == 9.0


def test_a_server_looks_by_itself(bench: Bench) -> None:
    changed = threading.Event()

    class Watched(EffectivePolicy):
        def refresh(self) -> None:
            super().refresh()
            if self().project_weight("org") == 9.0:
                changed.set()

    other = Watched(lambda: bench.policy, bench.database)
    other.start()
    try:
        bench.ledger.shares.set_weight("org", 9, actor="op")
        assert changed.wait(20)
    finally:
        other.stop()


def test_weights_stay_over_a_file_that_changes(bench: Bench) -> None:
    bench.ledger.shares.set_weight("org", 9, actor="op")
    bench.policy = replace(POLICY, entry_charge=1.0)
    assert bench.ledger.context.policy.project_weight("org") == 9.0
    assert bench.ledger.context.policy.entry_charge == 1.0


def test_a_queue_that_has_left_the_file_weighs_nothing_and_breaks_nothing(bench: Bench) -> None:
    bench.ledger.shares.set_weight("queue:merge", 9, actor="op")
    bench.ledger.shares.set_weight("other", 9, actor="op")
    rest = {name: rules for name, rules in POLICY.queues.items() if name != "merge"}
    bench.policy = replace(POLICY, queues=rest)
    assert "merge" not in bench.ledger.context.policy.queues
    assert bench.ledger.context.policy.project_weight("other") == 9.0
    flags = {one.entity: one.effective for one in bench.ledger.shares.fair_share().overrides}
    assert flags == {"queue:merge": False, "other": True}


def test_a_row_that_makes_no_sense_is_left_out(bench: Bench) -> None:
    bench.database.write(
        lambda tx: tx.session.add(
            FairShareOverride(entity="a//b", weight=1, set_by="x", reason="", set_at=tx.now)
        )
    )
    bench.ledger.context.policies.refresh()
    assert bench.ledger.context.policy == POLICY


def test_every_version_is_kept_once_and_a_change_makes_jobs_be_planned_again(bench: Bench) -> None:
    bench.ledger.context.policies.refresh()
    first = bench.ledger.context.policies.digest
    assert first == digest_of(POLICY) == digest_of(parse_policy(POLICY.describe()))
    bench.ledger.shares.set_weight("org", 9, actor="op")
    second = bench.ledger.context.policies.digest
    bench.ledger.shares.unset_weight("org", actor="op")
    assert bench.ledger.context.policies.digest == first != second
    with bench.database.read() as session:
        kept = {one.digest: one.document for one in session.scalars(select(PolicyVersion))}
        changes = session.scalars(select(Event).where(Event.event == "policy_changed")).all()
    assert set(kept) == {first, second}
    assert kept[second]["projects"]["org"]["weight"] == 9.0
    assert [one.data["digest"] for one in changes] == [second, first]


# ---- what may be weighed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "path", "user", "key"),
    [
        ("queue:merge", "queue", "merge", "", "queue:merge"),
        ("org", "project", "org", "", "project:org"),
        ("org/team", "project", "org/team", "", "project:org/team"),
        ("org/team@alice", "user", "org/team", "alice", "user:org/team/alice"),
        ("org@alice@example.org", "user", "org", "alice@example.org", "user:org/alice@example.org"),
    ],
)
def test_entities_are_named_as_people_write_them(
    text: str, kind: str, path: str, user: str, key: str
) -> None:
    name = parse_entity(text)
    assert (name.kind, name.path, name.user, name.policy_key, name.text) == (kind, path, user, key, text)


@pytest.mark.parametrize(
    "text", ["", "/", "a//b", "/a", "a/", "a@", "@a", "queue:", " ", "a\x00b", "x" * 251, "a@b/c", "a\nb"]
)
def test_what_names_no_entity_is_refused(bench: Bench, text: str) -> None:
    with pytest.raises(InvalidError) as refused:
        bench.ledger.shares.set_weight(text, 1, actor="op")
    assert refused.value.field == "entity"


@pytest.mark.parametrize(
    ("entity", "near"),
    [("queue:merg", "merge"), ("orgg", "org"), ("org/taem", "org/team"), ("org/team@alize", "alice")],
)
def test_a_mistyped_entity_takes_no_share_from_anybody(bench: Bench, entity: str, near: str) -> None:
    with pytest.raises(NotFoundError, match=f"did you mean '{near}'"):
        bench.ledger.shares.set_weight(entity, 1, actor="op")
    with pytest.raises(NotFoundError, match="no weight is set"):
        bench.ledger.shares.unset_weight(entity, actor="op")
    assert bench.ledger.context.policy == POLICY


def test_whoever_has_had_a_job_may_be_weighed(bench: Bench) -> None:
    bench.node()
    bench.submit("carol", project="lab/x")
    for entity in ("lab", "lab/x", "lab/x@carol"):
        bench.ledger.shares.set_weight(entity, 2, actor="op")
    assert bench.ledger.context.policy.user_weight("lab/x", "carol") == 2.0


# ---- the tree --------------------------------------------------------------------------------------------


def test_the_tree_shows_every_level_with_what_was_used(bench: Bench) -> None:
    bench.node(gpus=4)
    ran(bench, 0.1, by="alice", project="org/team", gpu_count=2)
    ran(bench, 0.1, by="bob", project="org/team", gpu_count=1)
    ran(bench, 0.1, by="carol", project="other", gpu_count=1)
    queue = row(bench, "queue:merge")
    assert (queue.level, queue.depth) == ("queue", 0)
    assert queue.gpu_hours == pytest.approx(0.4)
    org, other = row(bench, "org"), row(bench, "other")
    assert (org.weight, org.share, other.share) == (3.0, 0.75, 0.25)
    assert org.used_gpu_hours == pytest.approx(0.3)
    assert org.target_gpu_hours == pytest.approx(0.75 * 0.4)
    assert (org.deficit, other.deficit) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.0, abs=1e-9))
    assert org.rank == other.rank == 1, "they tie"
    alice, bob = row(bench, "org/team@alice"), row(bench, "org/team@bob")
    assert (alice.weight, alice.share, alice.depth) == (2.0, pytest.approx(2 / 3), 3)
    assert (alice.used_gpu_hours, bob.used_gpu_hours) == (pytest.approx(0.2), pytest.approx(0.1))
    assert row(bench, "org").overall_rank is None
    assert org.score_class == "normal"
    assert org.score == pytest.approx(10.0)
    total = [
        one for one in bench.ledger.shares.fair_share().entities if one.queue == "merge" and one.depth == 1
    ]
    assert math.fsum(one.share for one in total) == pytest.approx(1.0)


def test_an_override_moves_target_deficit_and_rank(bench: Bench) -> None:
    bench.node(gpus=4)
    ran(bench, 0.1, by="alice", project="org/team")
    ran(bench, 0.1, by="carol", project="other")
    assert [row(bench, name).rank for name in ("org", "other")] == [1, 2]
    bench.ledger.shares.set_weight("other", 9, actor="op")
    other = row(bench, "other")
    assert (other.policy_weight, other.override, other.weight) == (1.0, 9.0, 9.0)
    assert other.share == 0.75
    assert other.deficit == pytest.approx((0.75 * 0.2 - 0.1) / (0.75 * 0.2))
    assert [row(bench, name).rank for name in ("org", "other")] == [2, 1]
    entities = bench.ledger.shares.fair_share().entities
    users = {one.entity: one.overall_rank for one in entities if (one.level, one.queue) == ("user", "merge")}
    assert users["other@carol"] < users["org/team@alice"]


def test_weight_zero_is_served_last_and_can_be_explained(bench: Bench) -> None:
    from emep.api.explain import explain

    bench.node(gpus=1)
    ran(bench, 0.05, by="carol", project="other")
    bench.ledger.shares.set_weight("org", 0, actor="op")
    bench.ledger.shares.set_weight("org/team", 0, actor="op")
    runs = bench.running(by="dave", project="other")
    waits = bench.submit("alice", project="org/team")
    org = row(bench, "org")
    assert (org.deficit, org.share, org.target_gpu_hours) == (None, 0.0, 0.0)
    assert org.rank > row(bench, "other").rank
    assert org.score == pytest.approx(2.5)
    why = explain(bench.job(waits), bench.planner, bench.ledger.context.policy)
    assert (why.deficit, why.score) == (None, 2.5)
    assert runs.state.value == "running"


def test_what_runs_now_counts_to_the_second(bench: Bench) -> None:
    bench.node(gpus=4)
    job = bench.running(by="alice", project="org/team", gpu_count=4)
    bench.clock.advance(36)
    held = row(bench, "org/team@alice")
    assert held.gpu_hours == held.used_gpu_hours == pytest.approx(4 * 36 / HOUR)
    bench.complete(job)
    assert row(bench, "org/team@alice").gpu_hours == pytest.approx(4 * 36 / HOUR)


def test_the_deficits_are_those_that_explain_tells(bench: Bench) -> None:
    from emep.api.explain import explain

    bench.node(gpus=1)
    bench.policy = replace(POLICY, entry_charge=60.0, half_life=7 * 86400.0)
    ran(bench, 0.05, by="alice", project="org/team")
    bench.running(by="carol", project="other")
    waits = bench.submit("bob", project="org/team")
    words = " ".join(explain(bench.job(waits), bench.planner, bench.ledger.context.policy).order_key)
    for entity in ("org", "org/team"):
        assert f"project {entity} deficit {row(bench, entity).deficit:+.4f}" in words
    assert f"user bob deficit {row(bench, 'org/team@bob').deficit:+.4f}" in words


def test_an_overridden_weight_decides_who_is_next(bench: Bench) -> None:
    bench.node(gpus=1)
    ran(bench, 0.05, by="alice", project="org/team")
    ran(bench, 0.05, by="carol", project="other")
    holds = bench.running(by="dave", project="rest")
    first = bench.submit("carol", project="other")
    second = bench.submit("alice", project="org/team")
    bench.ledger.shares.set_weight("other", 30, actor="op")
    bench.complete(holds)
    bench.plan()
    assert bench.job(first).state.value == "starting"
    bench.ledger.shares.set_weight("other", 0.1, actor="op")
    third = bench.submit("carol", project="other")
    bench.ledger.jobs.cancel(first.id, actor="op")
    bench.poll("n0")
    bench.plan()
    assert (bench.job(second).state.value, bench.job(third).state.value) == ("starting", "pending")
