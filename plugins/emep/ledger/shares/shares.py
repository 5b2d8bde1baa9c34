"""Fair shares as operators see and change them: the tree with its numbers, weights set over the file's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from sqlalchemy import select
from sqlalchemy.orm import Session

from emep.ledger.context import LedgerContext
from emep.ledger.policies.effective import is_effective
from emep.ledger.shares.tree import Held, ShareTree
from emep.ledger.shares.usage import decay
from emep.ledger.states import LIVE_ALLOCATION_STATES
from emep.ledger.store.database import Transaction
from emep.ledger.store.tables import Allocation, FairShareOverride, Job, Usage
from emep.ledger.store.views import to_datetime
from emep.policy.model import Policy, ProjectPolicy
from emep.wire.base import JobState
from emep.wire.entities import EntityName, parse_entity
from emep.wire.errors import NotFoundError
from emep.wire.operations import FairShareView, OverrideView


class Shares:
    """Shows fair shares, and sets weights over the policy file's."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context

    def fair_share(self) -> FairShareView:
        """Every entity level by level, as the planner would compare them now."""
        with self._context.database.read_consistent() as session:
            tree = self.tree(session)
            rows = session.scalars(select(FairShareOverride).order_by(FairShareOverride.entity)).all()
            overrides = [_override_view(row, self._context.policies.base) for row in rows]
        weights = {row.entity: row.weight for row in overrides}
        return FairShareView(
            entities=tree.rows(self._context.policies.base, weights),
            overrides=overrides,
            half_life_seconds=self._context.policy.half_life,
            policy_digest=self._context.policies.digest,
        )

    def tree(self, session: Session) -> ShareTree:
        """The tree of every known entity: from the policy, from usage, from jobs that run or wait."""
        now, policy = self._context.now, self._context.policy
        tree = ShareTree(policy, now)
        for row in session.scalars(select(Usage)):
            tree.add_ended(
                (row.queue, row.project, row.user),
                row.gpu_seconds,
                decay(row.decayed, now - row.decayed_at, policy.half_life),
            )
        held = select(
            Job.queue,
            Job.project,
            Job.user,
            Allocation.gpu_count,
            Allocation.billing_rate,
            Allocation.granted_at,
            Allocation.first_heartbeat_at,
        ).join(Job, Job.id == Allocation.job_id)
        live = [state.value for state in LIVE_ALLOCATION_STATES]
        for queue, project, user, gpus, rate, granted, first in session.execute(
            held.where(Allocation.state.in_(live))
        ):
            tree.add_running((queue, project, user), Held(gpus, rate, granted, first or granted))
        waiting = select(Job.queue, Job.project, Job.user).where(Job.state == JobState.PENDING.value)
        for queue, project, user in session.execute(waiting.distinct()):
            tree.add_waiting((queue, project, user))
        return tree

    # ---- overrides -----------------------------------------------------------------------------------------

    def set_weight(self, entity: str, weight: float, *, actor: str, reason: str = "") -> OverrideView:
        """Set an entity's weight over the policy file's, in force in every API server within two seconds.

        Raises InvalidError if the text names no entity, NotFoundError if the entity is unknown.
        """
        name = parse_entity(entity)

        def work(tx: Transaction) -> None:
            self._check_known(tx.session, name)
            row = tx.session.get(FairShareOverride, name.text, with_for_update=True)
            before = None if row is None else row.weight
            if row is None:
                row = FairShareOverride(entity=name.text)
                tx.session.add(row)
            row.weight, row.reason, row.set_by, row.set_at = weight, reason, actor[:250], tx.now
            tx.session.flush()
            tx.emit(
                "share_set", actor=actor, reason=reason, entity=name.text, weight=weight, weight_before=before
            )

        self._context.database.write(work)
        self._context.policies.refresh()
        with self._context.database.read() as session:
            found = session.get(FairShareOverride, name.text)
            if found is None:
                raise NotFoundError(f"the override of {name.text} has been unset meanwhile", field="entity")
            return _override_view(found, self._context.policies.base)

    def unset_weight(self, entity: str, *, actor: str, reason: str = "") -> None:
        """Let the policy file's weight count again; NotFoundError where no override is set."""
        name = parse_entity(entity)

        def work(tx: Transaction) -> None:
            row = tx.session.get(FairShareOverride, name.text, with_for_update=True)
            if row is None:
                raise NotFoundError(
                    f"no weight is set over the policy file's for {name.text}", field="entity"
                )
            before = row.weight
            tx.session.delete(row)
            tx.session.flush()
            tx.emit(
                "share_unset", actor=actor, reason=reason, entity=name.text, weight=None, weight_before=before
            )

        self._context.database.write(work)
        self._context.policies.refresh()

    def _check_known(self, session: Session, name: EntityName) -> None:
        """Refuse an unknown entity: a mistyped project would take a share from all and use none of it."""
        base = self._context.policies.base
        if name.kind == "queue":
            if name.path not in base.queues:
                raise _unknown(f"queue {name.path!r} is not in the policy", name.path, base.queues)
            return
        used = {(row.project, row.user) for row in session.execute(select(Usage.project, Usage.user))}
        live = select(Job.project, Job.user).where(Job.ended_at.is_(None)).distinct()
        used |= {(row.project, row.user) for row in session.execute(live)}
        projects = set(_project_paths(base.projects, "")) | _with_parents(project for project, _ in used)
        if name.path not in projects:
            raise _unknown(f"project {name.path!r} is in no policy and has had no job", name.path, projects)
        if name.kind == "project":
            return
        rules = base.project(name.path)
        users = {user for project, user in used if project == name.path}
        if rules is not None:
            users |= {*rules.users, *(rules.members or ())}
        if name.user not in users:
            problem = f"user {name.user!r} of {name.path} is in no policy and has had no job there"
            raise _unknown(problem, name.user, users)


def _project_paths(projects: Mapping[str, ProjectPolicy], prefix: str) -> Iterator[str]:
    for name, rules in projects.items():
        yield prefix + name
        yield from _project_paths(rules.projects, f"{prefix}{name}/")


def _with_parents(projects: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in projects:
        parts = path.split("/")
        found.update("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return found


def _unknown(problem: str, word: str, known: Iterable[str]) -> NotFoundError:
    near = get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else "`emep share` lists what there is"
    return NotFoundError(f"entity: {problem}; {hint}", field="entity")


def _override_view(row: FairShareOverride, base: Policy) -> OverrideView:
    set_at = to_datetime(row.set_at)
    assert set_at is not None  # noqa: S101
    return OverrideView(
        entity=row.entity,
        weight=row.weight,
        set_by=row.set_by,
        reason=row.reason,
        set_at=set_at,
        effective=is_effective(base, row.entity),
    )
