"""Fair share: deficits of queues, projects (nested) and users, compared level by level as in a Fair Tree.

``deficit(e) = (target - consumed) / target`` with ``target = share(e) x consumed by all its siblings`` and
``share(e) = weight(e) / sum of sibling weights``; consumption is billed GPU-seconds, decayed by the caller.
Entities that tie are taken together and compared by their children, all in one; a path that ends at a tie
ranks equal to the best of what it ties with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from emep.policy.model import Policy, ProjectPolicy
from emep.scheduling.model import Job, UsageRecord

_DIGITS: Final = 9
"""Deficits that agree to this many decimals tie: they differ by rounding, not by consumption."""


class Entity:
    """A queue, project or user in the tree."""

    __slots__ = ("children", "consumed", "label", "parent", "weight")

    def __init__(self, label: str, weight: float, parent: Entity | None) -> None:
        self.label = label
        """``queue merge``, ``project org/team`` or ``user alice``."""
        self.weight = weight
        self.parent = parent
        self.consumed = 0.0
        self.children: dict[tuple[str, str], Entity] = {}

    def deficit(self) -> float:
        """From 1 (has had nothing while siblings have) down without end; -inf for weight 0."""
        if self.parent is None:
            return 0.0
        if self.weight <= 0:
            return -math.inf
        siblings = self.parent.children.values()
        consumed = math.fsum(sibling.consumed for sibling in siblings)
        if consumed <= 0:
            return 0.0
        target = self.weight / math.fsum(sibling.weight for sibling in siblings) * consumed
        return (target - self.consumed) / target


class FairTree:
    """The tree of all entities known: from the policy, from usage, and from jobs."""

    def __init__(self, policy: Policy, usage: Iterable[UsageRecord] = ()) -> None:
        self._policy = policy
        self._root = Entity("", 1.0, None)
        self._leaves: dict[tuple[str, str, str], Entity] = {}
        self._deficits: dict[int, float] = {}
        self._words: dict[int, tuple[str, ...]] = {}
        for queue in policy.queues:
            self._add_projects(self._queue(queue), policy.projects, "")
        for record in usage:
            self.charge(record.queue, record.project, record.user, record.gpu_seconds)

    # ---- entities ------------------------------------------------------------------------------------------

    def _queue(self, name: str) -> Entity:
        return _child(self._root, "queue", name, name, self._policy.queue_weight(name))

    def _add_projects(self, parent: Entity, projects: Mapping[str, ProjectPolicy], prefix: str) -> None:
        for name, rules in projects.items():
            entity = _child(parent, "project", name, prefix + name, rules.weight)
            for user in (*rules.users, *(rules.members or ())):
                weight = rules.users[user].weight if user in rules.users else 1.0
                _child(entity, "user", user, user, weight)
            self._add_projects(entity, rules.projects, f"{prefix}{name}/")

    def leaf(self, queue: str, project: str, user: str) -> Entity:
        """The user at the end of a path; made known where it is not."""
        key = (queue, project, user)
        found = self._leaves.get(key)
        if found is None:
            found = _child(
                self.project(queue, project), "user", user, user, self._policy.user_weight(project, user)
            )
            self._leaves[key] = found
            self._changed()
        return found

    def project(self, queue: str, project: str) -> Entity:
        """The project at the end of a path below a queue; made known where it is not."""
        entity, walked = self._queue(queue), ""
        for part in project.split("/") if project else ():
            walked = f"{walked}/{part}" if walked else part
            entity = _child(entity, "project", part, walked, self._policy.project_weight(walked))
        return entity

    def walk(self) -> Iterator[tuple[int, Entity]]:
        """Every entity with its depth (0: queues), parents before children, siblings by rank."""
        yield from self._walk(self._root, 0)

    def _walk(self, parent: Entity, depth: int) -> Iterator[tuple[int, Entity]]:
        for together in _ties([parent]):
            for entity in sorted(together, key=lambda found: found.label):
                yield depth, entity
                yield from self._walk(entity, depth + 1)

    # ---- consumption ---------------------------------------------------------------------------------------

    def charge(self, queue: str, project: str, user: str, gpu_seconds: float) -> None:
        """Add billed GPU-seconds to an entity and all above it."""
        entity: Entity | None = self.leaf(queue, project, user)
        while entity is not None:
            entity.consumed += gpu_seconds
            entity = entity.parent
        self._changed()

    def _changed(self) -> None:
        self._deficits.clear()
        self._words.clear()

    def deficit(self, entity: Entity) -> float:
        """``Entity.deficit``, cached until consumption changes."""
        found = self._deficits.get(id(entity))
        if found is None:
            found = self._deficits[id(entity)] = entity.deficit()
        return found

    def levels(self, job: Job) -> list[tuple[str, float]]:
        """(entity, deficit) from the queue down to the user."""
        found: list[tuple[str, float]] = []
        entity: Entity | None = self.leaf(job.queue, job.project, job.user)
        while entity is not None and entity.parent is not None:
            found.append((entity.label, self.deficit(entity)))
            entity = entity.parent
        return found[::-1]

    def levels_in_words(self, job: Job) -> tuple[str, ...]:
        """``levels`` as people read them, cached like the deficits."""
        leaf = self.leaf(job.queue, job.project, job.user)
        found = self._words.get(id(leaf))
        if found is None:
            words = tuple(f"{label} deficit {deficit:+.4f}" for label, deficit in self.levels(job))
            found = self._words[id(leaf)] = words
        return found

    # ---- ranking -------------------------------------------------------------------------------------------

    def classes(self, wanted: Mapping[int, int] | None = None) -> Iterator[list[Entity]]:
        """Users from the best served first on, those that tie together.

        ``wanted`` counts by ``id(entity)`` what is asked for below it: what has none is passed over, and may
        or may not be among what is yielded.
        """
        return self._below([self._root], wanted)

    def _below(self, tied: list[Entity], wanted: Mapping[int, int] | None) -> Iterator[list[Entity]]:
        leaves = [entity for entity in tied if not entity.children]
        inner = [entity for entity in tied if entity.children]
        if not inner:
            yield leaves
            return
        # A path that ends at a tie ranks with the best of the others, be that idle or not.
        rest = self._inside(inner, None if leaves else wanted)
        if leaves:
            yield leaves + next(rest, [])
        yield from rest

    def _inside(self, parents: list[Entity], wanted: Mapping[int, int] | None) -> Iterator[list[Entity]]:
        for together in _ties(parents):
            if wanted is None:
                yield from self._below(together, None)
                continue
            asked = [entity for entity in together if id(entity) in wanted]
            if asked:
                yield from self._below(asked, wanted)


def _ties(parents: list[Entity]) -> Iterator[list[Entity]]:
    """The children of all parents, those with the most left of their share first, equal ones together.

    Compared is consumed / target, which is 1 - deficit.
    """
    used: list[tuple[float, Entity]] = []
    for parent in parents:
        children = parent.children.values()
        consumed = math.fsum([child.consumed for child in children])
        if consumed <= 0:
            used += [(1.0 if child.weight > 0 else math.inf, child) for child in children]
        else:
            scale = math.fsum([child.weight for child in children]) / consumed
            used += [
                (
                    round(child.consumed * scale / child.weight, _DIGITS) if child.weight > 0 else math.inf,
                    child,
                )
                for child in children
            ]
    used.sort(key=_first)
    place = 0
    while place < len(used):
        value = used[place][0]
        together = [used[place][1]]
        place += 1
        while place < len(used) and used[place][0] == value:
            together.append(used[place][1])
            place += 1
        yield together


def _first(item: tuple[float, Entity]) -> float:
    return item[0]


def _child(parent: Entity, kind: str, name: str, path: str, weight: float) -> Entity:
    found = parent.children.get((kind, name))
    if found is None:
        found = parent.children[kind, name] = Entity(f"{kind} {path}", weight, parent)
    return found
