"""The order of jobs against exact fractions: Fair Tree levels, and entry charges within one plan."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

from tests.builders.scheduling import a_pool, a_snapshot
from tests.proof.effort import cases
from tests.proof.reference import Entity, ranked

from emep.policy import Policy, parse_policy
from emep.scheduling.model import Job, UsageRecord
from emep.scheduling.plan import plan


def draw_tree(random: Random, depth: int, prefix: str = "p") -> dict[str, Any]:
    """A policy's projects, nested, with weights that make ties likely."""
    projects: dict[str, Any] = {}
    for number in range(random.randint(1, 3)):
        name = f"{prefix}{number}"
        rules: dict[str, Any] = {"weight": random.choice([0, 1, 1, 2, 3])}
        rules["users"] = {
            f"{name}u{user}": {"weight": random.choice([0, 1, 1, 2])} for user in range(random.randint(1, 2))
        }
        if depth and random.random() < 0.5:
            rules["projects"] = draw_tree(random, depth - 1, f"{name}-")
        projects[name] = rules
    return projects


def users_of(projects: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    found = []
    for name, rules in projects.items():
        full = f"{path}/{name}" if path else name
        found += [(full, user) for user in rules["users"]] + users_of(rules.get("projects", {}), full)
    return found


class Tree:
    """The reference's tree of one queue, and the way from a job to its leaf."""

    def __init__(self, projects: dict[str, Any]) -> None:
        self.root = Entity("merge")
        self.leaves: dict[tuple[str, str], list[Entity]] = {}
        self._add(self.root, projects, "", [])

    def _add(self, parent: Entity, projects: dict[str, Any], path: str, above: list[Entity]) -> None:
        for name, rules in projects.items():
            full = f"{path}/{name}" if path else name
            entity = parent.child(name, rules["weight"])
            for user, own in rules["users"].items():
                self.leaves[full, user] = [*above, entity, entity.child(user, own["weight"])]
            self._add(entity, rules.get("projects", {}), full, [*above, entity])

    def charge(self, project: str, user: str, seconds: Fraction) -> None:
        for entity in self.leaves[project, user]:
            entity.used += seconds

    def rank(self) -> dict[str, int]:
        return {name: rank for rank, names in enumerate(ranked([self.root])) for name in names}


def reference_order(jobs: list[Job], tree: Tree, policy: Policy) -> list[str]:
    """Every job starts; each charges its entity at once before the next is chosen."""
    left, order = list(jobs), []
    while left:
        rank = tree.rank()
        first = min(
            left, key=lambda job: (-policy.class_value(job.priority), rank[job.user], job.submit_time, job.id)
        )
        left.remove(first)
        order.append(first.id)
        tree.charge(first.project, first.user, Fraction(policy.entry_charge) * first.gpu_count)
    return order


def test_jobs_start_in_the_order_of_exact_fractions() -> None:
    several = 0
    for number, random in cases(5):
        projects = draw_tree(random, 2)
        policy = parse_policy({"projects": projects, "entry_charge": random.choice([0, 60, 60])})
        tree, users = Tree(projects), users_of(projects)
        usage = []
        for project, user in users:
            seconds = random.choice([0, 0, 60, 120, 600, 3600])
            tree.charge(project, user, Fraction(seconds))
            usage.append(UsageRecord("merge", project, user, float(seconds)))
        jobs = []
        for place in range(random.randint(2, 12)):
            project, user = random.choice(users)
            jobs.append(
                Job(
                    id=f"j{place:02}",
                    submit_time=float(random.randint(0, 3)),
                    project=project,
                    user=user,
                    priority=random.choice(["critical", "normal", "normal", "normal", "low"]),
                    gpu_count=random.randint(1, 3),
                    max_duration=10.0,
                )
            )
        several += len({job.user for job in jobs}) > 2
        decided = plan(a_snapshot([a_pool(64)], jobs, usage=usage), policy, 10.0)
        assert [start.job_id for start in decided.starts] == reference_order(jobs, tree, policy), (
            f"case {number}"
        )
    assert several > 20
