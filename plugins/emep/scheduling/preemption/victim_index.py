"""Victims among many candidates: finds the cheapest in each NVLink group, rack or node, with arrays.

Candidates are kept in one greedy order (class, then work lost by GPU freed, then latest start). For each
domain that could hold the job the first ones that free enough are its offer; offers are compared roughly with
arrays, the best few exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emep.scheduling.cluster.arrays import BoolArray, FloatArray, IntArray
from emep.scheduling.cluster.domains import Domains
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.preemption.victim_order import VictimCandidate, set_key
from emep.scheduling.request import Request

_CLOSE_LOOKS: Final = 8
"""Offers that are compared exactly."""


@dataclass(slots=True)
class _Layout:
    """What candidates free in units (domains, or nodes' parts of domains), by unit and greedy order."""

    candidate: IntArray
    unit: IntArray
    count: IntArray
    first: IntArray
    """Of each unit the first row, and one more."""
    spans: BoolArray
    """Per candidate, whether it frees GPUs in more units than one."""
    row_of: dict[tuple[int, int], int]


class VictimIndex:
    """The candidates of one kind of GPU and one set of classes; an evicted one leaves it."""

    def __init__(
        self, index: ClusterIndex, usable: Sequence[bool], candidates: Iterable[VictimCandidate]
    ) -> None:
        """``usable``: by GPU, whether it could serve the job at all."""
        self._index = index
        held = [(one, [gpu for gpu in one.gpus if usable[gpu]]) for one in candidates]
        held = [(one, gpus) for one, gpus in held if gpus]
        held.sort(key=lambda item: item[0].greedy_key(len(item[1])))
        self.candidates = [one for one, _ in held]
        self._gpus = [gpus for _, gpus in held]
        self._alive: BoolArray = np.ones(len(held), dtype=bool)
        self._place = {one.job.id: place for place, one in enumerate(self.candidates)}
        self._owner = {gpu: place for place, gpus in enumerate(self._gpus) for gpu in gpus}
        self._class: FloatArray = np.array([one.class_value for one in self.candidates], dtype=np.float64)
        self._work: FloatArray = np.array([one.work_lost for one in self.candidates], dtype=np.float64)
        self._layouts: dict[tuple[bool, str | None, bool], _Layout] = {}

    def __len__(self) -> int:
        return int(self._alive.sum())

    def remove(self, job_id: str) -> None:
        """This one is evicted."""
        place = self._place.get(job_id)
        if place is not None:
            self._alive[place] = False

    # ---- choice --------------------------------------------------------------------------------------------

    def cheapest(
        self, request: Request, base: IntArray, blocked: IntArray
    ) -> tuple[list[VictimCandidate], bool] | None:
        """The best offer, and whether it is sure to be minimal; None where there is none.

        ``base``: GPUs by cell that the job has without victims; ``blocked``: GPUs that it may not use.
        """
        by_node = request.node_count > 0
        domains = self._index.domains(request.nvlink, request.level)
        layout = self._layout(domains, (request.nvlink, request.level, by_node))
        need = (request.per_node if by_node else request.gpus) - (
            domains.part_sums(base) if by_node else domains.sums(base)
        )
        counts = np.where(self._alive[layout.candidate], layout.count, 0)
        self._block(layout, domains, counts, blocked, by_node)
        units, last, rough = self._offers(layout, counts, need)
        if by_node:
            sets = _by_domain(units, domains.domain_of_part[units], rough, request.node_count)
        else:
            sets = [[unit] for unit in units[np.lexsort(rough[::-1])][:_CLOSE_LOOKS].tolist()]
        ends = dict(zip(units.tolist(), last.tolist(), strict=True))
        best: tuple[object, list[int]] | None = None
        for chosen_units in sets:
            chosen = self._take(layout, counts, need, chosen_units, ends)
            key = set_key([self.candidates[place] for place in chosen])
            if best is None or key < best[0]:  # type: ignore[operator]
                best = (key, chosen)
        if best is None:
            return None
        return [self.candidates[place] for place in best[1]], not layout.spans[best[1]].any()

    def _offers(
        self, layout: _Layout, counts: IntArray, need: IntArray
    ) -> tuple[IntArray, IntArray, tuple[FloatArray, ...]]:
        """Units that can be made to hold enough, the last row of each offer, and (class, work, victims)."""
        running = np.append(0, np.cumsum(counts))
        begin, end = layout.first[:-1], layout.first[1:]
        able = np.flatnonzero(running[end] - running[begin] >= need)
        last = np.searchsorted(running, running[begin[able]] + np.maximum(need[able], 0)) - 1
        last = np.where(need[able] > 0, last, begin[able] - 1)
        present = counts > 0
        work = np.append(0.0, np.cumsum(np.where(present, self._work[layout.candidate], 0.0)))
        number = np.append(0, np.cumsum(present))
        begin = begin[able]
        free = need[able] <= 0
        highest = np.where(
            free, -np.inf, self._class[layout.candidate[np.maximum(last, 0)]] if len(counts) else 0
        )
        return able, last, (highest, work[last + 1] - work[begin], (number[last + 1] - number[begin]) * 1.0)

    def _take(
        self, layout: _Layout, counts: IntArray, need: IntArray, units: Iterable[int], ends: dict[int, int]
    ) -> list[int]:
        """Places of the candidates of some units' offers, less those that turn out not to be needed."""
        chosen: dict[int, None] = {}
        for unit in units:
            first = int(layout.first[unit])
            rows = np.flatnonzero(counts[first : ends[unit] + 1]) + first
            freed = counts[rows].tolist()
            spare = sum(freed) - int(need[unit])
            for row, count in zip(reversed(rows.tolist()), reversed(freed), strict=True):
                if count <= spare:
                    spare -= count
                else:
                    chosen[int(layout.candidate[row])] = None
        return sorted(chosen)

    def _block(
        self, layout: _Layout, domains: Domains, counts: IntArray, blocked: IntArray, by_node: bool
    ) -> None:
        """Take GPUs that are reserved for others out of what their holders would free."""
        unit_of_cell = domains.part_of_cell if by_node else domains.of_cell
        for gpu in blocked.tolist():
            place = self._owner.get(gpu)
            if place is not None and self._alive[place]:
                row = layout.row_of.get((place, int(unit_of_cell[self._index.gpu_cell_list[gpu]])))
                if row is not None:
                    counts[row] -= 1

    def _layout(self, domains: Domains, kind: tuple[bool, str | None, bool]) -> _Layout:
        found = self._layouts.get(kind)
        if found is None:
            found = self._layouts[kind] = self._make_layout(domains, kind[2])
        return found

    def _make_layout(self, domains: Domains, by_node: bool) -> _Layout:
        unit_of_cell = (domains.part_of_cell if by_node else domains.of_cell).tolist()
        units = len(domains.domain_of_part) if by_node else domains.count
        cell_of = self._index.gpu_cell_list
        rows: dict[tuple[int, int], int] = {}
        spans = np.zeros(len(self.candidates), dtype=bool)
        for place, gpus in enumerate(self._gpus):
            mine = {unit_of_cell[cell_of[gpu]] for gpu in gpus}
            spans[place] = len(mine) > 1
            for gpu in gpus:
                unit = unit_of_cell[cell_of[gpu]]
                if unit >= 0:
                    rows[unit, place] = rows.get((unit, place), 0) + 1
        ordered = sorted(rows)
        unit = np.array([item[0] for item in ordered], dtype=np.int64)
        return _Layout(
            candidate=np.array([item[1] for item in ordered], dtype=np.int64),
            unit=unit,
            count=np.array([rows[item] for item in ordered], dtype=np.int64),
            first=np.searchsorted(unit, np.arange(units + 1)),
            spans=spans,
            row_of={(place, unit): row for row, (unit, place) in enumerate(ordered)},
        )


def _by_domain(
    units: IntArray, domain_of: IntArray, rough: tuple[FloatArray, ...], number: int
) -> list[list[int]]:
    """For each domain with enough units its ``number`` cheapest; the cheapest few domains."""
    order = np.lexsort((*rough[::-1], domain_of))
    sets: list[tuple[tuple[float, float, float], list[int]]] = []
    highest, work, count = rough
    for domain in np.unique(domain_of).tolist():
        inside = order[domain_of[order] == domain][:number]
        if len(inside) == number:
            key = (float(highest[inside].max()), float(work[inside].sum()), float(count[inside].sum()))
            sets.append((key, units[inside].tolist()))
    sets.sort(key=lambda item: item[0])
    return [item[1] for item in sets[:_CLOSE_LOOKS]]
