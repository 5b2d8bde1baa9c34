"""The fair-share tree for people: the core's tree with every number that operators ask for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from emep.ledger.shares.usage import decayed_charge
from emep.policy.model import Policy
from emep.scheduling.fair_share import Entity, FairTree
from emep.wire.entities import QUEUE_PREFIX
from emep.wire.operations import ShareView

Leaf = tuple[str, str, str]
"""Queue, project, user."""
HOUR = 3600.0


@dataclass(frozen=True)
class Held:
    """GPUs that are held now."""

    gpus: int
    rate: float
    """Billed GPU-seconds of one second."""
    granted_at: float
    started_at: float


class ShareTree:
    """Fill it with ``add_...``, then read ``rows``."""

    def __init__(self, policy: Policy, now: float) -> None:
        self._policy, self._now = policy, now
        self._tree = FairTree(policy)
        self._raw: dict[int, float] = defaultdict(float)
        """By ``id(entity)``: GPU-seconds, not billed, not decayed."""
        self._used: dict[int, float] = defaultdict(float)
        """Billed and decayed; without the entry charge, which counts for the order only."""

    def add_ended(self, leaf: Leaf, gpu_seconds: float, decayed: float) -> None:
        """Add what ended runs have held."""
        self._tree.charge(*leaf, decayed)
        self._note(leaf, gpu_seconds, decayed)

    def add_running(self, leaf: Leaf, held: Held) -> None:
        """Add what a live run has held so far; for the order, it counts with at least the entry charge."""
        seconds = max(0.0, self._now - held.granted_at)
        decayed = decayed_charge(held.rate, held.granted_at, self._now, self._now, self._policy.half_life)
        charge = self._policy.entry_charge
        rest = min(charge, max(0.0, charge - (self._now - held.started_at))) if held.gpus else 0.0
        self._tree.charge(*leaf, decayed + rest * held.rate)
        self._note(leaf, held.gpus * seconds, decayed)

    def add_waiting(self, leaf: Leaf) -> None:
        """Add a user with waiting jobs: a share belongs to him even if he has used nothing yet."""
        self._tree.leaf(*leaf)

    def _note(self, leaf: Leaf, raw: float, used: float) -> None:
        entity: Entity | None = self._tree.leaf(*leaf)
        while entity is not None:
            self._raw[id(entity)] += raw
            self._used[id(entity)] += used
            entity = entity.parent

    # ---- reading -------------------------------------------------------------------------------------------

    def rows(self, base: Policy, overrides: Mapping[str, float]) -> list[ShareView]:
        """Every entity, parents before children, siblings by rank; ``base`` is the file's own policy."""
        overall: dict[int, int] = {}
        for together in self._tree.classes():
            place = len(overall) + 1
            overall.update((id(entity), place) for entity in together)
        found: list[ShareView] = []
        path: list[Entity] = []
        ranks: dict[int, tuple[int, int, float]] = {}
        for depth, entity in self._tree.walk():
            path[depth:] = [entity]
            found.append(self._row(path, base, overrides, self._rank(ranks, entity), overall.get(id(entity))))
        return found

    def _rank(self, ranks: dict[int, tuple[int, int, float]], entity: Entity) -> int:
        """The entity's rank among its siblings; entities with equal deficits share a rank."""
        seen, rank, before = ranks.get(id(entity.parent), (0, 0, math.nan))
        deficit = round(entity.deficit(), 9)
        rank = rank if deficit == before else seen + 1
        ranks[id(entity.parent)] = (seen + 1, rank, deficit)
        return rank

    def _row(
        self,
        path: list[Entity],
        base: Policy,
        overrides: Mapping[str, float],
        rank: int,
        overall: int | None,
    ) -> ShareView:
        entity, queue = path[-1], path[0].label.removeprefix("queue ")
        level, name = entity.label.split(" ", 1)
        if level == "queue":
            written, weight = QUEUE_PREFIX + name, base.queue_weight(name)
        elif level == "project":
            written, weight = name, base.project_weight(name)
        else:
            project = path[-2].label.removeprefix("project ")
            written, weight = f"{project}@{name}", base.user_weight(project, name)
        siblings = list(entity.parent.children.values()) if entity.parent is not None else [entity]
        total = math.fsum(sibling.weight for sibling in siblings)
        share = entity.weight / total if total > 0 else 0.0
        consumed = math.fsum(self._used[id(sibling)] for sibling in siblings)
        deficit = entity.deficit()
        score_class, score = self._score(queue, path)
        return ShareView(
            level=cast(Literal["queue", "project", "user"], level),
            entity=written,
            queue=queue,
            depth=len(path) - 1,
            policy_weight=weight,
            override=overrides.get(written),
            weight=entity.weight,
            share=share,
            gpu_hours=self._raw[id(entity)] / HOUR,
            used_gpu_hours=self._used[id(entity)] / HOUR,
            target_gpu_hours=share * consumed / HOUR,
            deficit=deficit if math.isfinite(deficit) else None,
            rank=rank,
            overall_rank=overall,
            score_class=score_class,
            score=score,
        )

    def _score(self, queue: str, path: list[Entity]) -> tuple[str | None, float | None]:
        """Score of a job of the queue's default class: the project's deficit counts, as in ``explain``."""
        rules = self._policy.queues.get(queue)
        projects = [entity for entity in path if entity.label.startswith("project ")]
        if rules is None or not projects:
            return None, None
        value = self._policy.class_value(rules.default_class)
        return rules.default_class, value * min(2.0, max(0.25, 1.0 + projects[-1].deficit()))
