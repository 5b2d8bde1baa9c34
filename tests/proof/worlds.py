"""Hypothesis strategies for whole worlds: a cluster, a policy and work that arrives over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.builders.replay import Work, work
from tests.builders.scheduling import a_node, a_pool

from emep.policy import Policy, parse_policy
from emep.scheduling.model import Node


@dataclass(frozen=True)
class World:
    """Everything that a replay needs."""

    nodes: tuple[Node, ...]
    policy: Policy
    works: tuple[Work, ...]
    grace: float = 0.0

    @property
    def gpus(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Node, ...]:
    """One to four nodes of up to four GPUs in groups of one, two, or the whole node, in one or two racks."""
    group = draw(st.sampled_from([1, 2, 4]))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    racks = draw(st.integers(1, 2))
    return tuple(
        a_node(f"n{number}").gpus(size).nvlink_groups_of(group).rack(f"r{number % racks}").build()
        for number, size in enumerate(sizes)
    )


@st.composite
def policies(draw: st.DrawFn, *, owners: bool = True) -> Policy:
    """The default policy with other numbers of reservations, and perhaps with quotas and guarantees."""
    projects: dict[str, Any] = {}
    for name in ("a", "b") if owners else ():
        rules: dict[str, Any] = {"weight": draw(st.sampled_from([1, 1, 2]))}
        if draw(st.booleans()):
            rules["guaranteed_gpus"] = {"default": draw(st.integers(1, 6))}
        elif draw(st.integers(0, 3)) == 0:
            rules["max_gpus"] = draw(st.integers(2, 6))
        projects[name] = rules
    return parse_policy(
        {
            "projects": projects,
            "reservations": draw(st.sampled_from([0, 1, 1, 2, "all"])),
            "entry_charge": draw(st.sampled_from([0, 60])),
            "half_life": draw(st.sampled_from([0, "100s", "7d"])),
            "order": draw(st.sampled_from(["submit_time", "submit_time", "shortest", "smallest_area"])),
            "overtaking": draw(st.sampled_from(["free", "bounded"])),
            "preemption": {"min_runtime": draw(st.sampled_from([0, 0, 5]))},
        }
    )


CLASSES = {
    "merge": ["critical", "high", "normal", "low", "low"],
    "eval": ["high", "normal", "low"],
    "inference": ["realtime", "normal"],
}


@st.composite
def arrivals(draw: st.DrawFn, number: int, most: int) -> Work:
    """One job of up to ``most`` GPUs, of any queue, class and project."""
    queue = draw(st.sampled_from(["merge", "merge", "merge", "eval", "inference"]))
    run = draw(st.integers(1, 60))
    fields: dict[str, Any] = {
        "queue": queue,
        "priority": draw(st.sampled_from(CLASSES[queue])),
        "project": draw(st.sampled_from("abc")),
        "user": draw(st.sampled_from(["", "u"])),
        "nvlink_required": draw(st.integers(0, 4)) == 0,
        "preemptible": draw(st.sampled_from([None, None, None, True, False])),
        "max_duration": float(run * draw(st.sampled_from([1, 1, 2]))),
    }
    return work(f"j{number:02}", draw(st.integers(0, 40)), draw(st.integers(1, most)), run, **fields)


@st.composite
def worlds(draw: st.DrawFn, *, owners: bool = True) -> World:
    """A cluster under load: more work than it can do at once."""
    nodes = draw(clusters())
    most = max(1, sum(len(node.gpus) for node in nodes))
    count = draw(st.integers(1, 16))
    works = tuple(draw(arrivals(number, most)) for number in range(count))
    return World(nodes, draw(policies(owners=owners)), works, draw(st.sampled_from([0.0, 0.0, 7.0])))


@st.composite
def counted(draw: st.DrawFn) -> tuple[int, tuple[Work, ...]]:
    """Conditions of the backfill properties: one class and entity, only numbers count, exact durations."""
    size = draw(st.integers(1, 12))
    works = tuple(
        work(f"j{number:02}", draw(st.integers(0, 60)), draw(st.integers(1, size)), draw(st.integers(1, 80)))
        for number in range(draw(st.integers(1, 18)))
    )
    return size, works


def pool_of(size: int) -> tuple[Node, ...]:
    """One node where only numbers count."""
    return (a_pool(size).build(),)
