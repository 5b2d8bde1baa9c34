"""Placement on more GPUs than brute force can try: the same order, by sets of blocks, racks and groups."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from random import Random

from tests.builders.scheduling import a_job, a_node, running
from tests.proof import reference
from tests.proof.effort import cases
from tests.proof.reference import Key, Place

from emep.policy import default_policy
from emep.scheduling.model import Job, Node, Snapshot
from emep.scheduling.plan import plan

POLICY = default_policy()


def draw_cluster(random: Random) -> list[Node]:
    """Nodes of four in groups of two or four, over a few racks and blocks."""
    blocks, racks, size = random.randint(1, 3), random.randint(1, 3), random.choice([2, 4])
    return [
        a_node(f"n{number:02}")
        .gpus(4)
        .nvlink_groups_of(size)
        .rack(f"r{random.randrange(racks)}")
        .block(f"b{random.randrange(blocks)}")
        .build()
        for number in range(random.randint(4, 9))
    ]


def smallest_sets(sizes: dict[object, int], need: int) -> list[set[object]]:
    """All sets of as few domains as hold ``need``."""
    for count in range(1, len(sizes) + 1):
        found = [
            set(names) for names in combinations(sizes, count) if sum(sizes[name] for name in names) >= need
        ]
        if found:
            return found
    return []


def count_by(free: list[Place], name: str) -> dict[object, int]:
    sizes: dict[object, int] = {}
    for place in free:
        sizes[getattr(place, name)] = sizes.get(getattr(place, name), 0) + 1
    return sizes


def group_sets(free: list[Place], need: int) -> Iterator[list[Place]]:
    """GPUs of all sets of groups that come into question: fewest blocks, then racks, then groups."""
    found: list[tuple[int, int, list[Place]]] = []
    for blocks in smallest_sets(count_by(free, "block"), need):
        inside = [place for place in free if place.block in blocks]
        for racks in smallest_sets(count_by(inside, "rack"), need):
            region = [place for place in inside if place.rack in racks]
            for groups in smallest_sets(count_by(region, "group"), need):
                found.append((len(racks), len(groups), [place for place in region if place.group in groups]))
    least = min((racks, groups) for racks, groups, _ in found)
    yield from (chosen for racks, groups, chosen in found if (racks, groups) == least)


def best_key(free: list[Place], job: Job) -> Key:
    """The order's numbers, from blocks to what is left free on nodes, of the best placement there is."""
    need = job.gpu_count
    keys = []
    for chosen in group_sets(free, need):
        nodes = {place.id.node for place in chosen}
        on_nodes = sum(1 for place in free if place.id.node in nodes)
        keys.append((len(nodes), len(chosen) - need, on_nodes - need))
    one = next(iter(group_sets(free, need)))
    counts = [len(set(count_by(one, name))) for name in ("block", "rack", "group")]
    return (*counts, *min(keys))


def key_of(chosen: list[Place], free: list[Place]) -> Key:
    full = reference.placement_key(chosen, a_job("x").build(), free, POLICY)
    return (*full[2:6], *full[8:])


def test_wide_placements_are_first_in_order_too() -> None:
    wide = 0
    for number, random in cases(3):
        nodes = draw_cluster(random)
        gpus = [gpu for place in reference.places(nodes).values() for gpu in [place.id]]
        held = random.sample(gpus, random.randint(0, len(gpus) * 2 // 3))
        busy = [running(a_job("old").gpus(len(held)).queue("eval").limit(1e6), sorted(held))] if held else []
        free = [place for gpu, place in reference.places(nodes).items() if gpu not in set(held)]
        need = random.randint(2, max(2, len(free) * 2 // 3))
        job = a_job("x").gpus(need).limit(10).preferring(None).build()
        decided = plan(Snapshot(tuple(nodes), (job,), tuple(busy)), POLICY, 1.0)
        assert len(decided.starts) == (need <= len(free)), f"case {number}"
        if not decided.starts:
            continue
        gpus_of = {place.id: place for place in free}
        chosen = [gpus_of[gpu] for gpu in decided.starts[0].placement.gpus]
        wide += len({place.group for place in free}) > 10
        assert key_of(chosen, free) == best_key(free, job), f"case {number}: {need} of {len(free)}"
    assert wide > 20
