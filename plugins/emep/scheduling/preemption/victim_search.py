"""Choosing among victims: exact for up to a dozen candidates, greedy and minimal beyond, in one order.

The order is that of ``victim_order``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from emep.scheduling.cluster.arrays import IntArray
from emep.scheduling.placement.feasibility import fits
from emep.scheduling.plan_state import PlanState
from emep.scheduling.preemption.victim_order import SetKey, VictimCandidate, set_key
from emep.scheduling.request import Request

EXACT_CANDIDATES: Final = 12


class VictimSearch:
    """One job, what it has without victims, and the candidates with what each would free for it by cell."""

    def __init__(
        self,
        state: PlanState,
        request: Request,
        pool: str,
        base: IntArray,
        candidates: list[tuple[VictimCandidate, dict[int, int]]],
    ) -> None:
        self.state, self.request, self.pool, self.base = state, request, pool, base
        self.candidates = candidates
        self.cells_of = {one.job.id: cells for one, cells in candidates}
        self.allow: Callable[[Sequence[VictimCandidate]], bool] = lambda victims: True
        """Whether a set may be chosen at all."""
        self.by_class = True
        """Whether the class of victims counts, or the work lost alone."""

    def feasible(self, victims: Iterable[VictimCandidate]) -> bool:
        """Whether the job fits once these are gone."""
        counts = self.base.copy()
        gone: list[VictimCandidate] = []
        for one in victims:
            gone.append(one)
            for cell, count in self.cells_of[one.job.id].items():
                counts[cell] += count
        counts = self.state.capped(self.request, counts, self.state.host_without(one.job.id for one in gone))
        return fits(self.request, self.state.index, counts)

    def key(self, victims: Sequence[VictimCandidate]) -> SetKey:
        """The order of sets."""
        return set_key(victims, by_class=self.by_class)

    def greedy_key(self, one: VictimCandidate) -> SetKey:
        """The same order for one candidate at a time."""
        return one.greedy_key(sum(self.cells_of[one.job.id].values()), by_class=self.by_class)


def cheapest(search: VictimSearch) -> list[VictimCandidate] | None:
    """The best minimal set; empty where the job fits as soon as what winds down by itself is gone."""
    if search.feasible(()):
        return []
    if len(search.candidates) <= EXACT_CANDIDATES:
        return _exact(search)
    return _greedy(search)


def _exact(search: VictimSearch) -> list[VictimCandidate] | None:
    """All minimal sets, by growing size: a superset of a feasible set is not minimal."""
    people = [one for one, _ in search.candidates]
    minimal: list[int] = []
    best: tuple[SetKey, list[VictimCandidate]] | None = None
    for mask in sorted(range(1, 1 << len(people)), key=lambda bits: (bits.bit_count(), bits)):
        if any(mask & found == found for found in minimal):
            continue
        chosen = [one for place, one in enumerate(people) if mask >> place & 1]
        if not _enough(search, chosen) or not search.feasible(chosen):
            continue
        minimal.append(mask)
        if search.allow(chosen):
            key = search.key(chosen)
            if best is None or key < best[0]:
                best = (key, chosen)
    return None if best is None else best[1]


def _enough(search: VictimSearch, chosen: Sequence[VictimCandidate]) -> bool:
    freed = sum(sum(search.cells_of[one.job.id].values()) for one in chosen)
    return int(search.base.sum()) + freed >= search.request.gpus


# ---- greedy ------------------------------------------------------------------------------------------------


def _greedy(search: VictimSearch) -> list[VictimCandidate] | None:
    ordered = sorted((one for one, _ in search.candidates), key=search.greedy_key)
    request = search.request
    starts = _by_node(search, ordered) if request.node_count else _by_domain(search, ordered)
    best: tuple[SetKey, list[VictimCandidate]] | None = None
    for chosen in starts:
        key = search.key(chosen)
        if best is None or key < best[0]:
            best = (key, chosen)
    found = best[1] if best is not None and search.feasible(best[1]) else _prefix(search, ordered)
    if found is None:
        return None
    found = prune(search, found)
    return found if search.allow(found) else None


def prune(search: VictimSearch, victims: list[VictimCandidate]) -> list[VictimCandidate]:
    """Drop victims that are not needed, the most expensive first."""
    kept = list(victims)
    for one in sorted(victims, key=search.greedy_key, reverse=True):
        rest = [other for other in kept if other is not one]
        if search.feasible(rest):
            kept = rest
    return kept


def _by_domain(search: VictimSearch, ordered: list[VictimCandidate]) -> list[list[VictimCandidate]]:
    """For each domain that could hold the job, its cheapest candidates until it does, less any in excess."""
    index, need = search.state.index, search.request.gpus
    domains = index.domains(search.request.nvlink, search.request.level)
    have = domains.sums(search.base).tolist()
    of_cell = domains.of_cell.tolist()
    inside: dict[int, list[tuple[VictimCandidate, int]]] = {}
    for one in ordered:
        freed: dict[int, int] = {}
        for cell, count in search.cells_of[one.job.id].items():
            freed[of_cell[cell]] = freed.get(of_cell[cell], 0) + count
        for domain, count in freed.items():
            if domain >= 0:
                inside.setdefault(domain, []).append((one, count))
    found: list[list[VictimCandidate]] = []
    for domain, offers in sorted(inside.items()):
        chosen = _until(search, offers, need - have[domain])
        if chosen is not None:
            found.append(chosen)
    return found


def _until(
    search: VictimSearch, offers: list[tuple[VictimCandidate, int]], need: int
) -> list[VictimCandidate] | None:
    """The first offers that add up to ``need``, then without those that turn out not to be needed."""
    chosen: list[tuple[VictimCandidate, int]] = []
    total = 0
    for one, count in offers:
        if total >= need:
            break
        if search.allow([*(person for person, _ in chosen), one]):
            chosen.append((one, count))
            total += count
    if total < need:
        return None
    for offer in reversed(chosen[:]):
        if total - offer[1] >= need:
            chosen.remove(offer)
            total -= offer[1]
    return [one for one, _ in chosen]


def _by_node(search: VictimSearch, ordered: list[VictimCandidate]) -> list[list[VictimCandidate]]:
    """For each domain, the nodes that come to their share of GPUs most cheaply."""
    index, request = search.state.index, search.request
    domains = index.domains(request.nvlink, request.level)
    have = domains.part_sums(search.base).tolist()
    part_of = domains.part_of_cell.tolist()
    offers: dict[int, list[tuple[VictimCandidate, int]]] = {}
    for one in ordered:
        for cell, count in search.cells_of[one.job.id].items():
            if part_of[cell] >= 0:
                offers.setdefault(part_of[cell], []).append((one, count))
    by_domain: dict[int, list[list[VictimCandidate]]] = {}
    for part, domain in enumerate(domains.domain_of_part.tolist()):
        chosen = _until(search, offers.get(part, []), request.per_node - have[part])
        if chosen is not None:
            by_domain.setdefault(domain, []).append(chosen)
    found: list[list[VictimCandidate]] = []
    for _, shares in sorted(by_domain.items()):
        if len(shares) >= request.node_count:
            shares.sort(key=search.key)
            people = {one.job.id: one for share in shares[: request.node_count] for one in share}
            found.append(list(people.values()))
    return found


def _prefix(search: VictimSearch, ordered: list[VictimCandidate]) -> list[VictimCandidate] | None:
    """The shortest run of candidates from the cheapest on that makes room."""
    low, high = 1, len(ordered)
    if not search.feasible(ordered):
        return None
    while low < high:
        middle = (low + high) // 2
        if search.feasible(ordered[:middle]):
            high = middle
        else:
            low = middle + 1
    return ordered[:low]
