"""Groups of GPUs that reach each other directly."""

from __future__ import annotations

from collections.abc import Iterable


def connected_groups(count: int, pairs: Iterable[tuple[int, int]]) -> list[int | None]:
    """Number of each GPU's group, from the pairs that are linked; None for a GPU that is linked to no other.

    Groups are connected components: collectives route around inside one (as on cube-mesh boards, where not
    every pair has a link of its own). Groups are numbered by their lowest GPU.
    """
    lowest = list(range(count))

    def find(gpu: int) -> int:
        while lowest[gpu] != gpu:
            gpu = lowest[gpu]
        return gpu

    linked: set[int] = set()
    for first, second in pairs:
        linked |= {first, second}
        a, b = sorted((find(first), find(second)))
        lowest[b] = a
    roots = sorted({find(gpu) for gpu in linked})
    number = {root: position for position, root in enumerate(roots)}
    return [number[find(gpu)] if gpu in linked else None for gpu in range(count)]
