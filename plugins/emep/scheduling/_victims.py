"""Choosing among victims: exact for up to a dozen candidates, greedy and minimal beyond, in one order.

Sets are compared by: the highest class in them; the work lost (GPUs x seconds since the last checkpoint) from
that class down; the number of victims; the GPUs freed; the latest start first; job ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from emep.scheduling._board import Board
from emep.scheduling._index import IntArray
from emep.scheduling.eligibility import Request
from emep.scheduling.model import Allocation, Job
from emep.scheduling.placement import fits

EXACT_CANDIDATES: Final = 12

SetKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running job that may be a victim."""

    job: Job
    gpus: tuple[int, ...]
    class_value: float
    seconds_lost: float
    """Since its last checkpoint; 0 for one that checkpoints when told to."""
    start_time: float

    @staticmethod
    def of(allocation: Allocation, gpus: Iterable[int], class_value: float, now: float) -> Candidate:
        """The candidate that an allocation is at ``now``."""
        lost = 0.0
        if allocation.job.checkpoint_interval is not None:
            since = allocation.last_checkpoint
            lost = max(0.0, now - (allocation.start_time if since is None else since))
        return Candidate(allocation.job, tuple(gpus), class_value, lost, allocation.start_time)

    def greedy_key(self, freed: int, *, by_class: bool = True) -> SetKey:
        """The order of sets for one at a time that would free so many GPUs of use: work by GPU freed."""
        value = self.class_value if by_class else 0.0
        return (value, self.work_lost / freed, len(self.gpus) - freed, -self.start_time, self.job.id)

    @property
    def work_lost(self) -> float:
        """GPU-seconds."""
        return len(self.gpus) * self.seconds_lost


class Contest:
    """One job, what it has without victims, and the candidates with what each would free for it by cell."""

    def __init__(
        self,
        board: Board,
        request: Request,
        pool: str,
        base: IntArray,
        candidates: list[tuple[Candidate, dict[int, int]]],
    ) -> None:
        self.board, self.request, self.pool, self.base = board, request, pool, base
        self.candidates = candidates
        self.cells_of = {one.job.id: cells for one, cells in candidates}
        self.allow: Callable[[Sequence[Candidate]], bool] = lambda victims: True
        """Whether a set may be chosen at all."""
        self.by_class = True
        """Whether the class of victims counts, or the work lost alone."""

    def feasible(self, victims: Iterable[Candidate]) -> bool:
        """Whether the job fits once these are gone."""
        counts = self.base.copy()
        gone: list[Candidate] = []
        for one in victims:
            gone.append(one)
            for cell, count in self.cells_of[one.job.id].items():
                counts[cell] += count
        counts = self.board.capped(self.request, counts, self.board.host_without(one.job.id for one in gone))
        return fits(self.request, self.board.index, counts)

    def key(self, victims: Sequence[Candidate]) -> SetKey:
        """The order of sets."""
        return set_key(victims, by_class=self.by_class)

    def greedy_key(self, one: Candidate) -> SetKey:
        """The same order for one candidate at a time."""
        return one.greedy_key(sum(self.cells_of[one.job.id].values()), by_class=self.by_class)


def set_key(victims: Sequence[Candidate], *, by_class: bool = True) -> SetKey:
    """The order of sets of victims; without classes (a guarantee is taken back) by the work lost first."""
    work: dict[float, float] = {}
    for one in victims:
        value = one.class_value if by_class else 0.0
        work[value] = work.get(value, 0.0) + one.work_lost
    return (
        max(work, default=0.0),
        _ByClass(work),
        len(victims),
        sum(len(one.gpus) for one in victims),
        tuple(sorted(-one.start_time for one in victims)),
        tuple(sorted(one.job.id for one in victims)),
    )


class _ByClass:
    """Work lost by class value, compared from the highest class down; a class that is missing lost none."""

    __slots__ = ("_work",)

    def __init__(self, work: dict[float, float]) -> None:
        self._work = work

    def __lt__(self, other: _ByClass) -> bool:
        for value in sorted(self._work.keys() | other._work.keys(), reverse=True):
            mine, theirs = self._work.get(value, 0.0), other._work.get(value, 0.0)
            if mine != theirs:
                return mine < theirs
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByClass) and not self < other and not other < self

    __hash__ = None  # type: ignore[assignment]


def cheapest(contest: Contest) -> list[Candidate] | None:
    """The best minimal set; empty where the job fits as soon as what winds down by itself is gone."""
    if contest.feasible(()):
        return []
    if len(contest.candidates) <= EXACT_CANDIDATES:
        return _exact(contest)
    return _greedy(contest)


def _exact(contest: Contest) -> list[Candidate] | None:
    """All minimal sets, by growing size: a superset of a feasible set is not minimal."""
    people = [one for one, _ in contest.candidates]
    minimal: list[int] = []
    best: tuple[SetKey, list[Candidate]] | None = None
    for mask in sorted(range(1, 1 << len(people)), key=lambda bits: (bits.bit_count(), bits)):
        if any(mask & found == found for found in minimal):
            continue
        chosen = [one for place, one in enumerate(people) if mask >> place & 1]
        if not _enough(contest, chosen) or not contest.feasible(chosen):
            continue
        minimal.append(mask)
        if contest.allow(chosen):
            key = contest.key(chosen)
            if best is None or key < best[0]:
                best = (key, chosen)
    return None if best is None else best[1]


def _enough(contest: Contest, chosen: Sequence[Candidate]) -> bool:
    freed = sum(sum(contest.cells_of[one.job.id].values()) for one in chosen)
    return int(contest.base.sum()) + freed >= contest.request.gpus


# ---- greedy ------------------------------------------------------------------------------------------------


def _greedy(contest: Contest) -> list[Candidate] | None:
    ordered = sorted((one for one, _ in contest.candidates), key=contest.greedy_key)
    request = contest.request
    starts = _by_node(contest, ordered) if request.node_count else _by_domain(contest, ordered)
    best: tuple[SetKey, list[Candidate]] | None = None
    for chosen in starts:
        key = contest.key(chosen)
        if best is None or key < best[0]:
            best = (key, chosen)
    found = best[1] if best is not None and contest.feasible(best[1]) else _prefix(contest, ordered)
    if found is None:
        return None
    found = prune(contest, found)
    return found if contest.allow(found) else None


def prune(contest: Contest, victims: list[Candidate]) -> list[Candidate]:
    """Let go whoever is not needed, the dearest first."""
    kept = list(victims)
    for one in sorted(victims, key=contest.greedy_key, reverse=True):
        rest = [other for other in kept if other is not one]
        if contest.feasible(rest):
            kept = rest
    return kept


def _by_domain(contest: Contest, ordered: list[Candidate]) -> list[list[Candidate]]:
    """For each domain that could hold the job, its cheapest candidates until it does, less any in excess."""
    index, need = contest.board.index, contest.request.gpus
    domains = index.domains(contest.request.nvlink, contest.request.level)
    have = domains.sums(contest.base).tolist()
    of_cell = domains.of_cell.tolist()
    inside: dict[int, list[tuple[Candidate, int]]] = {}
    for one in ordered:
        freed: dict[int, int] = {}
        for cell, count in contest.cells_of[one.job.id].items():
            freed[of_cell[cell]] = freed.get(of_cell[cell], 0) + count
        for domain, count in freed.items():
            if domain >= 0:
                inside.setdefault(domain, []).append((one, count))
    found: list[list[Candidate]] = []
    for domain, offers in sorted(inside.items()):
        chosen = _until(contest, offers, need - have[domain])
        if chosen is not None:
            found.append(chosen)
    return found


def _until(contest: Contest, offers: list[tuple[Candidate, int]], need: int) -> list[Candidate] | None:
    """The first offers that add up to ``need``, then without those that turn out not to be needed."""
    chosen: list[tuple[Candidate, int]] = []
    total = 0
    for one, count in offers:
        if total >= need:
            break
        if contest.allow([*(person for person, _ in chosen), one]):
            chosen.append((one, count))
            total += count
    if total < need:
        return None
    for offer in reversed(chosen[:]):
        if total - offer[1] >= need:
            chosen.remove(offer)
            total -= offer[1]
    return [one for one, _ in chosen]


def _by_node(contest: Contest, ordered: list[Candidate]) -> list[list[Candidate]]:
    """For each domain, the nodes that come to their share of GPUs most cheaply."""
    index, request = contest.board.index, contest.request
    domains = index.domains(request.nvlink, request.level)
    have = domains.part_sums(contest.base).tolist()
    part_of = domains.part_of_cell.tolist()
    offers: dict[int, list[tuple[Candidate, int]]] = {}
    for one in ordered:
        for cell, count in contest.cells_of[one.job.id].items():
            if part_of[cell] >= 0:
                offers.setdefault(part_of[cell], []).append((one, count))
    by_domain: dict[int, list[list[Candidate]]] = {}
    for part, domain in enumerate(domains.domain_of_part.tolist()):
        chosen = _until(contest, offers.get(part, []), request.per_node - have[part])
        if chosen is not None:
            by_domain.setdefault(domain, []).append(chosen)
    found: list[list[Candidate]] = []
    for _, shares in sorted(by_domain.items()):
        if len(shares) >= request.node_count:
            shares.sort(key=contest.key)
            people = {one.job.id: one for share in shares[: request.node_count] for one in share}
            found.append(list(people.values()))
    return found


def _prefix(contest: Contest, ordered: list[Candidate]) -> list[Candidate] | None:
    """The shortest run of candidates from the cheapest on that makes room."""
    low, high = 1, len(ordered)
    if not contest.feasible(ordered):
        return None
    while low < high:
        middle = (low + high) // 2
        if contest.feasible(ordered[:middle]):
            high = middle
        else:
            low = middle + 1
    return ordered[:low]
