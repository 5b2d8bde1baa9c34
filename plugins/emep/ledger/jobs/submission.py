"""Submission of jobs: one or a thousand at a time, idempotent; jobs that can never run are rejected.

Everything that needs no database is decided before the write, so that the write is short: one statement for
all jobs, and one for all events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Table, insert, inspect, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from emep.ledger.caches.pending_bound import too_many
from emep.ledger.context import LedgerContext
from emep.ledger.jobs.repeats import check_repeat
from emep.ledger.jobs.take_over import of_earlier_try, take_over
from emep.ledger.jobs.validation import JobValidator, Key, Prepared, Submitter, like_a_row
from emep.ledger.lifecycle.tries import answer_letters, avoid_nodes, hold_back
from emep.ledger.store.database import Transaction
from emep.ledger.store.ids import job_ids
from emep.ledger.store.repository import chunks
from emep.ledger.store.tables import Job
from emep.ledger.store.views import job_view, job_views
from emep.wire.base import JobState
from emep.wire.errors import ConflictError, EmepError, RejectedJobError, UnavailableError
from emep.wire.jobs import JobRequest, JobView

BATCH_ATTEMPTS = 5
_INSERT = insert(cast(Table, Job.__table__))
_COLUMN_NAMES = {attribute.key: attribute.columns[0].name for attribute in inspect(Job).column_attrs}
Outcome = tuple[JobView, bool] | EmepError
"""A job and whether it is new, or why there is none."""


class Submissions:
    """Takes jobs in."""

    def __init__(self, context: LedgerContext, validator: JobValidator) -> None:
        self._context = context
        self._validator = validator

    def submit(self, request: JobRequest, submitter: Submitter) -> tuple[JobView, bool]:
        """Take a job in. True: it is new.

        False: its idempotency key was used before, or an earlier try of the same task has completed the job
        or still runs it; the answer is that earlier job. Raises InvalidError for fields that contradict each
        other (nothing is kept), RejectedJobError for a job that can never run (kept as ``rejected``),
        ConflictError where another request has used its idempotency key, TooManyError where the user has as
        many jobs that wait as the policy allows.
        """
        prepared = self._validator.prepare(request, submitter)
        limit = self._context.policy.limits.pending_jobs

        def work(tx: Transaction) -> tuple[JobView, bool]:
            earlier = of_earlier_try(tx, prepared.values, request.airflow)
            may_wait = prepared.reject is not None or places[submitter.user] > 0
            if (earlier is not None or not may_wait) and _by_key(tx.session, [prepared]):
                earlier, may_wait = None, True  # the key's own job is the answer: the insert will say so
            if earlier is not None:
                if earlier.state == JobState.COMPLETED.value:
                    reason = f"try {prepared.values['try_number']} of its task takes its result"
                    tx.emit("asked_again", job=earlier, actor=submitter.name, reason=reason, plan=False)
                else:
                    take_over(tx, earlier, prepared.values, prepared.timeout)
                return job_view(tx.session, earlier), False
            if not may_wait:
                raise too_many(submitter.user, limit)
            return self._insert(tx, [prepared])[0], True

        try:
            with self._context.pending_bound.places(_waiting([prepared]), limit) as (places, is_taken):
                view, is_new = self._context.database.write(work)
                if is_new and prepared.reject is None:
                    is_taken(submitter.user)
        except IntegrityError:
            # The key has been used: looking for it first would cost every other request a query.
            with self._context.database.read() as session:
                found = list(_by_key(session, [prepared]).values())
                if not found:
                    raise
                check_repeat(found[0], prepared.values)
                return _answer(job_view(session, found[0])), False
        return _answer(view), is_new

    def submit_batch(self, asked: Sequence[tuple[JobRequest, Submitter]]) -> list[Outcome]:
        """Submit many jobs in one transaction, and return an outcome for each.

        A job that is refused does not affect the others. Raises UnavailableError if other requests keep using
        the same idempotency keys.
        """
        judged: list[Prepared | EmepError] = []
        for request, submitter in asked:
            try:
                judged.append(self._validator.prepare(request, submitter))
            except EmepError as error:
                judged.append(error)
        limit = self._context.policy.limits.pending_jobs
        ready = [entry for entry in judged if isinstance(entry, Prepared)]
        with self._context.pending_bound.places(_waiting(ready), limit) as (places, is_taken):
            for _ in range(BATCH_ATTEMPTS):
                try:
                    outcomes = self._context.database.write(
                        lambda tx: self._insert_batch(tx, judged, places, limit)
                    )
                except IntegrityError:
                    continue  # another request used one of the keys just now: the next look finds it
                for entry, outcome in zip(judged, outcomes, strict=True):
                    if isinstance(entry, Prepared) and isinstance(outcome, tuple) and outcome[1]:
                        is_taken(entry.values["user"])
                return outcomes
        raise UnavailableError("others submit with the same idempotency keys at the same time: try again")

    def _insert_batch(
        self, tx: Transaction, judged: Sequence[Prepared | EmepError], places: Counter[str], limit: int
    ) -> list[Outcome]:
        ready = [entry for entry in judged if isinstance(entry, Prepared)]
        known = _by_key(tx.session, ready)
        views: dict[Key | None, JobView] = dict(
            zip(known, job_views(tx.session, list(known.values())), strict=True)
        )
        new, refused = _choose(ready, known, places, limit)
        made = {id(entry): view for entry, view in zip(new, self._insert(tx, new), strict=True)}
        outcomes: list[Outcome] = []
        for one in judged:
            if isinstance(one, EmepError) or id(one) in refused:
                outcomes.append(one if isinstance(one, EmepError) else refused[id(one)])
                continue
            view = made.get(id(one))
            is_new = view is not None
            if view is None:
                view = views[one.key]
            elif one.key is not None:
                views[one.key] = view  # a second request with this key gets the same job
            try:
                outcomes.append((_answer(view), is_new))
            except RejectedJobError as error:
                outcomes.append(error)
        return outcomes

    def _insert(self, tx: Transaction, prepared: Sequence[Prepared]) -> list[JobView]:
        """Write new jobs and their events. Raises IntegrityError where a key is used already."""
        rows = [self._row(entry, tx.now) for entry in prepared]
        for row in rows:
            hold_back(
                tx, row, self._context.policy.preemption.grace_period + self._context.policy.lease.expiry
            )
            avoid_nodes(tx, row)
            answer_letters(tx, row)
        if rows:
            # Without the ORM, which takes twice as long for one row.
            tx.session.connection().execute(_INSERT, [_columns(row) for row in rows])
        views = []
        for row, entry in zip(rows, prepared, strict=True):
            job = like_a_row(row)
            tx.emit(
                job.state if entry.reject else "submitted",
                job=job,
                actor=job.submitted_by,
                code=job.reason_code,
                reason=job.reason if entry.reject else "",
                plan=entry.reject is None,
                user=job.user,
            )
            views.append(job_view(tx.session, job))
        return views

    @staticmethod
    def _row(entry: Prepared, now: float) -> dict[str, Any]:
        job_id = job_ids.new(now)
        reject = entry.reject
        return {
            **entry.values,
            "id": job_id,
            "checkpoint_key": entry.values["checkpoint_key"] or job_id,
            "state": (JobState.PENDING if reject is None else JobState.REJECTED).value,
            "submitted_at": now,
            "queued_at": now,
            "task_deadline": None if entry.timeout is None else now + entry.timeout,
            "ended_at": None if reject is None else now,
            "reason_code": "" if reject is None else reject.code.value,
            "reason": "waits for the next plan" if reject is None else reject.message,
        }


def _columns(values: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a job by the names of their columns."""
    return {_COLUMN_NAMES[name]: value for name, value in values.items()}


def _choose(
    ready: Sequence[Prepared], known: Mapping[Key, Job], places: Counter[str], limit: int
) -> tuple[list[Prepared], dict[int, EmepError]]:
    """Which requests of a batch make new jobs, and the errors of those that are refused, by ``id()``.

    ``known``: jobs that have used the batch's keys before. ``places``: how many may wait, by user.
    """
    used, free = dict(known), Counter(places)
    new: list[Prepared] = []
    refused: dict[int, EmepError] = {}
    for entry in ready:
        user = entry.values["user"]
        if entry.key is not None and entry.key in used:
            try:
                check_repeat(used[entry.key], entry.values)
            except ConflictError as error:
                refused[id(entry)] = error
        elif entry.reject is None and free[user] < 1:
            refused[id(entry)] = too_many(user, limit)
        else:
            free[user] -= entry.reject is None
            new.append(entry)
            if entry.key is not None:
                used[entry.key] = like_a_row({**entry.values, "id": ""})
    return new, refused


def _waiting(prepared: Sequence[Prepared]) -> Counter[str]:
    """By user, how many of these are to wait."""
    return Counter(entry.values["user"] for entry in prepared if entry.reject is None)


def _by_key(session: Session, prepared: Sequence[Prepared]) -> dict[Key, Job]:
    """Jobs that earlier requests with the same keys have made; one query for 400 of them."""
    wanted: dict[str, list[str]] = {}
    for entry in prepared:
        if entry.key is not None:
            wanted.setdefault(entry.key[0], []).append(entry.key[1])
    found: dict[Key, Job] = {}
    for name, keys in wanted.items():
        for part in chunks(list(dict.fromkeys(keys))):
            query = select(Job).where(Job.submitted_by == name, Job.idempotency_key.in_(part))
            found.update(((name, str(job.idempotency_key)), job) for job in session.scalars(query))
    return found


def _answer(view: JobView) -> JobView:
    if view.state is JobState.REJECTED:
        raise RejectedJobError(view.reason, job=view.model_dump(mode="json"))
    return view
