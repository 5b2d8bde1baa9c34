"""The planner's cache of the ledger: the core's input, kept from cycle to cycle.

Every change of state writes an event in its own transaction, and the clock's row orders the events. So the
events after a cursor name all that has changed, and only that is read again. Two things are read each time:
what time alone changes (nodes that fell silent) and what no event names (reserved GPUs). Everything is read
at the start, under a new policy, if events are missing, and now and then to check the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from emep.ledger.planning.hold_rows import read_leaving, read_live
from emep.ledger.planning.snapshot import (
    Contents,
    LedgerSnapshot,
    estimated,
    read_contents,
    read_ended_usage,
    read_jobs,
    remember,
    see,
)
from emep.ledger.store.job_rows import job_of_row
from emep.ledger.store.node_rows import read_nodes, read_unschedulable
from emep.ledger.store.repository import clock_row
from emep.ledger.store.tables import Event
from emep.policy.model import Policy
from emep.scheduling import model
from emep.scheduling.collection import no_collection
from emep.scheduling.planner import IncrementalPlanner as Core
from emep.wire.base import JobState

log = logging.getLogger(__name__)
CHECK_SECONDS = 300.0
"""How often everything is read all the same, and compared."""
ESTIMATE_SECONDS = 10.0
"""How often pending jobs are given new estimates; they matter for words, and for orders by length."""
MANY_EVENTS = 20_000
"""More news than this, and reading everything is cheaper."""


@dataclass
class _News:
    """What events since the cursor name."""

    jobs: set[str] = field(default_factory=set)
    allocations: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    codes: dict[str, str] = field(default_factory=dict)
    """Job -> what a plan has written down of why it waits."""
    charged: bool = False


class Mirror:
    """Call ``refresh`` in a session whose statements all see the same moment, from one thread at a time."""

    def __init__(
        self, *, check_every: float = CHECK_SECONDS, estimate_every: float = ESTIMATE_SECONDS
    ) -> None:
        self._check_every, self._estimate_every = check_every, estimate_every
        self._contents = Contents()
        self._policy: Policy | None = None
        self._core: Core | None = None
        self._cursor = 0
        self._checked_at = self._estimated_at = 0.0
        self._history_changed = False
        self._touched: set[str] = set()
        """Pending jobs that may be others than the core was told of."""
        self._told_pending: dict[str, model.Job] = {}
        self._told_running: dict[str, model.Allocation] = {}
        self._told_nodes: tuple[model.Node, ...] = ()
        self.full_reads = 0
        """How often everything was read."""

    @property
    def core(self) -> Core:
        """The core as of the last ``refresh``; it receives changes and keeps the rest."""
        if self._core is None:
            raise RuntimeError("refresh the mirror before planning with it")
        return self._core

    def forget(self) -> None:
        """Read everything next time."""
        self._policy = None

    def refresh(self, session: Session, policy: Policy, now: float, alive_for: float) -> LedgerSnapshot:
        """Bring everything up to the moment that the session sees; the core too."""
        with no_collection():
            return self._refresh(session, policy, now, alive_for)

    def _refresh(self, session: Session, policy: Policy, now: float, alive_for: float) -> LedgerSnapshot:
        seq, dirty, _, _ = clock_row(session)
        is_same = policy is self._policy or policy == self._policy
        news = self._news(session, seq) if is_same else None
        if news is None:
            self._read_all(session, policy, now, alive_for)
        else:
            self._apply(session, policy, news, now, now - alive_for)
            if not 0 <= now - self._checked_at < self._check_every:
                self._check(session, policy, now, alive_for)
        self._cursor = seq
        seen = see(session, self._contents, policy, now)
        self._tell(policy, seen)
        return LedgerSnapshot(seen, dirty, seq, now, dict(self._contents.reason_codes))

    # ---- reading -------------------------------------------------------------------------------------------

    def _news(self, session: Session, until: int) -> _News | None:
        """What the events after the cursor name; None if events are missing."""
        if until < self._cursor or until - self._cursor > MANY_EVENTS:
            return None
        found, news = 0, _News()
        columns = (Event.event, Event.job_id, Event.allocation_id, Event.node, Event.reason_code)
        query = select(*columns).where(Event.id > self._cursor, Event.id <= until).order_by(Event.id)
        for event, job_id, allocation_id, node, code in session.execute(query):
            found += 1
            if event == "waiting" and job_id is not None:
                news.codes[job_id] = code
                continue
            if job_id is not None:
                news.jobs.add(job_id)
            if allocation_id is not None:
                news.allocations.add(allocation_id)
                news.charged = news.charged or event.startswith("allocation_")
            if node is not None:
                news.nodes.add(node)
        return news if found == until - self._cursor else None

    def _read_all(self, session: Session, policy: Policy, now: float, alive_for: float) -> None:
        self.full_reads += 1
        self._contents = read_contents(session, policy, now, alive_for)
        self._policy, self._core = policy, None
        self._checked_at = self._estimated_at = now
        self._history_changed = False

    def _apply(self, session: Session, policy: Policy, news: _News, now: float, alive_since: float) -> None:
        mine = self._contents
        for job_id, code in news.codes.items():
            if job_id in mine.reason_codes:
                mine.reason_codes[job_id] = code
        if news.jobs:
            self._read_jobs(session, policy, news)
        self._read_allocations(session, policy, news)
        if news.charged:
            mine.ended_usage = read_ended_usage(session)
        self._read_nodes(session, news.nodes, alive_since)
        if self._history_changed and not 0 <= now - self._estimated_at < self._estimate_every:
            self._estimate(now)

    def _read_jobs(self, session: Session, policy: Policy, news: _News) -> None:
        mine, completed = self._contents, []
        gone = set(news.jobs)
        self._touched |= gone
        for row in read_jobs(session, ids=news.jobs):
            if row.state == JobState.PENDING.value:
                gone.discard(row.id)
                mine.pending[row.id] = estimated(job_of_row(row, policy), mine.history)
                mine.reason_codes[row.id] = row.reason_code
            elif row.state == JobState.COMPLETED.value:
                completed.append(row)
        for job_id in gone:
            mine.pending.pop(job_id, None)
            mine.reason_codes.pop(job_id, None)
        if completed:
            remember(mine.history, completed)
            self._history_changed = True

    def _read_allocations(self, session: Session, policy: Policy, news: _News) -> None:
        """Read the allocations that are named, those of jobs that are named, and those held for such jobs."""
        mine, jobs = self._contents, news.jobs
        ids = set(news.allocations)
        if jobs:
            for name, one in mine.live.items():
                if one.allocation.job.id in jobs or one.allocation.held_for in jobs:
                    ids.add(name)
            ids.update(name for name, gone in mine.leaving.items() if gone.held_for in jobs)
        if not ids:
            return
        live, leaving = read_live(session, policy, ids), read_leaving(session, policy, ids)
        for name in ids:
            mine.live.pop(name, None)
            mine.leaving.pop(name, None)
        mine.live.update(live)
        mine.leaving.update(leaving)

    def _read_nodes(self, session: Session, named: Collection[str], alive_since: float) -> None:
        nodes = self._contents.nodes
        if named:
            for name in named:
                nodes.pop(name, None)
            nodes.update((node.name, node) for node in read_nodes(session, alive_since, named))
        out = read_unschedulable(session, alive_since)
        for name, node in nodes.items():
            if node.schedulable == (name in out):
                nodes[name] = replace(node, schedulable=name not in out)

    def _estimate(self, now: float) -> None:
        mine = self._contents
        for job_id, job in mine.pending.items():
            anew = estimated(job, mine.history)
            if anew is not job:
                mine.pending[job_id] = anew
                self._touched.add(job_id)
        self._estimated_at, self._history_changed = now, False

    def _check(self, session: Session, policy: Policy, now: float, alive_for: float) -> None:
        """Read everything and compare. A difference means a missing event: it is logged and corrected."""
        kept = self._contents
        fresh = read_contents(session, policy, now, alive_for)
        kept.history = fresh.history
        self._estimate(now)
        self._checked_at = now
        self.full_reads += 1
        wrong = differences(kept, fresh)
        if wrong:
            log.error("the planner's memory differed from the ledger, and is read anew: %s", "; ".join(wrong))
            self._contents, self._core = fresh, None

    # ---- telling the core ----------------------------------------------------------------------------------

    def _tell(self, policy: Policy, seen: model.Snapshot) -> None:
        """Pass the changes since the last call to the core; ends come before starts."""
        pending = self._contents.pending
        if self._core is None:
            self._core = Core(seen.nodes, policy)
            self._told_pending, self._told_running = {}, {}
            self._touched = set(pending)
        elif seen.nodes != self._told_nodes:
            self._core.reset(seen.nodes)
        self._told_nodes = seen.nodes
        told = self._told_pending
        changed = sorted(name for name in self._touched if pending.get(name) is not told.get(name))
        for job_id in changed:
            if told.pop(job_id, None) is not None:
                self._core.leave(job_id)
        self._tell_running(self._core, {one.job.id: one for one in seen.allocations})
        for job_id in changed:
            job = pending.get(job_id)
            if job is not None:
                self._core.submit(job)
                told[job_id] = job
        self._touched = set()

    def _tell_running(self, core: Core, running: dict[str, model.Allocation]) -> None:
        told = self._told_running
        changed = {name: one for name, one in running.items() if told.get(name) is not one}
        anew = {name for name, one in changed.items() if name in told and not _is_same_work(told[name], one)}
        for name in told:
            if name not in running or name in anew:
                core.end(name)
        for name, one in changed.items():
            if name in told and name not in anew:
                core.change(one)
        core.start_all(one for name, one in changed.items() if name not in told or name in anew)
        self._told_running = running


def _is_same_work(before: model.Allocation, after: model.Allocation) -> bool:
    """Whether the core may take ``after`` for a change of ``before``: the same job on the same GPUs."""
    same_places = before.gpus == after.gpus and before.nodes == after.nodes
    return before is after or (same_places and before.job == after.job)


def differences(kept: Contents, fresh: Contents) -> list[str]:
    """Describes each difference in a few words; estimates of durations are not compared."""
    pairs: list[tuple[str, Mapping[Any, Any], Mapping[Any, Any]]] = [
        ("nodes", kept.nodes, fresh.nodes),
        ("pending jobs", _plain(kept.pending), _plain(fresh.pending)),
        ("reasons", kept.reason_codes, fresh.reason_codes),
        ("allocations", kept.live, fresh.live),
        ("leases that are over", kept.leaving, fresh.leaving),
        ("usage", {row[:3]: row for row in kept.ended_usage}, {row[:3]: row for row in fresh.ended_usage}),
    ]
    found: list[str] = []
    for name, mine, theirs in pairs:
        wrong = sorted(str(key) for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            found.append(f"{name} {', '.join(wrong[:3])}{more}")
    return found


def _plain(jobs: Mapping[str, model.Job]) -> dict[str, model.Job]:
    return {name: replace(job, estimated_duration=None) for name, job in jobs.items()}
