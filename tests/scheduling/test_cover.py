"""Choosing cells: the array search agrees with trying everything, and large regions come close."""

from __future__ import annotations

from itertools import combinations, product
from random import Random

import numpy as np
import pytest
from tests.builders.scheduling import a_node

from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.placement.large_region import tightest
from emep.scheduling.placement.room import CellCounts, Room
from emep.scheduling.placement.small_region import cover


def some_room(random: Random, nodes: int, *, kinds: bool, spread: bool) -> Room:
    built = []
    for number in range(nodes):
        size = random.choice([2, 4, 8])
        node = a_node(f"n{number}").rack(f"r{random.randrange(3)}").block(f"b{random.randrange(2)}")
        memory = random.choice([40, 80]) if kinds else 80
        node = node.gpus(size, "", memory).having(
            network_bandwidth_gbps=random.choice([100, 400]) if kinds else 0
        )
        built.append(
            node.nvlink_groups_of(random.choice([size, size // 2])).build()
            if random.random() < 0.8
            else node.build()
        )
    index = ClusterIndex(built)
    available = np.array([random.randint(0, int(size)) for size in index.cell_size], dtype=np.int64)
    more = np.array([random.randint(0, 2) for _ in range(index.cell_count)], dtype=np.int64)
    groups = np.zeros(len(index.groups) + 1, dtype=np.int64)
    linked = index.cell_group >= 0
    np.add.at(groups, index.cell_group[linked], (available + more)[linked])
    by_node = np.bincount(index.cell_node, weights=available + more, minlength=nodes).astype(np.int64)
    return Room(index, available, groups, by_node, spread)


def every_choice(room: Room, need: int) -> list[CellCounts]:
    """All ways to take ``need`` GPUs from all cells."""
    cells = np.flatnonzero(room.available).tolist()
    found = []
    for counts in product(*(range(int(room.available[cell]) + 1) for cell in cells)):
        if sum(counts) == need:
            found.append(tuple((cell, count) for cell, count in zip(cells, counts, strict=True) if count))
    return found


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize("spread", [False, True])
def test_small_regions_are_searched_exactly(kinds: bool, spread: bool) -> None:
    compared = 0
    for seed in range(40):
        random = Random(f"{seed} {kinds} {spread}")
        room = some_room(random, random.randint(1, 4), kinds=kinds, spread=spread)
        total = int(room.available.sum())
        if not 1 <= total <= 14:
            continue
        need = random.randint(1, total)
        best = min(room.key_of(choice)[0] for choice in every_choice(room, need))
        found = cover(room, np.arange(room.index.cell_count), need)
        assert found is not None
        assert sum(count for _, count in found) == need
        assert all(count <= room.available[cell] for cell, count in found)
        assert room.key_of(found)[0] == best, (seed, found)
        compared += 1
    assert compared > 15


def test_a_region_that_holds_too_little_offers_nothing() -> None:
    room = some_room(Random(1), 3, kinds=False, spread=False)
    assert cover(room, np.arange(room.index.cell_count), int(room.available.sum()) + 1) is None


@pytest.mark.parametrize("seed", range(30))
def test_the_tightest_set_is_the_first_of_the_smallest(seed: int) -> None:
    random = Random(seed)
    sizes = [random.randint(1, 9) for _ in range(random.randint(1, 9))]
    need = random.randint(1, sum(sizes))
    sets = [
        chosen
        for count in range(1, len(sizes) + 1)
        for chosen in combinations(range(len(sizes)), count)
        if sum(sizes[place] for place in chosen) >= need
    ]
    best = min(sets, key=lambda chosen: (len(chosen), sum(sizes[place] for place in chosen), chosen))
    assert tightest(sizes, need) == list(best)


def test_the_tightest_of_very_many_still_has_as_few_as_can_be() -> None:
    random = Random(7)
    sizes = [random.randint(1, 8) for _ in range(3000)]
    chosen = tightest(sizes, 4000)
    assert sum(sizes[place] for place in chosen) >= 4000
    fewest = next(n for n in range(1, 3001) if sum(sorted(sizes, reverse=True)[:n]) >= 4000)
    assert len(chosen) == fewest
