"""``POST /jobs:batch``: validates each request by itself, with the outcome that ``POST /jobs`` would have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from emep.api.problems import document_of, invalid_document
from emep.ledger.jobs.validation import Submitter
from emep.ledger.service import LedgerService
from emep.wire.errors import EmepError
from emep.wire.jobs import JobRequest
from emep.wire.operations import BatchAnswer, BatchOutcome


def submit_all(
    ledger: LedgerService, asked: Sequence[Any], submitter_of: Callable[[JobRequest], Submitter]
) -> BatchAnswer:
    """Submit every request that is valid, in one transaction; ``submitter_of`` raises ForbiddenError."""
    outcomes: list[BatchOutcome | None] = [None] * len(asked)
    good: list[tuple[int, JobRequest, Submitter]] = []
    for place, document in enumerate(asked):
        try:
            request = JobRequest.model_validate(document)
            good.append((place, request, submitter_of(request)))
        except ValidationError as error:
            problem = invalid_document(error.errors(include_url=False, include_context=False))
            outcomes[place] = BatchOutcome(status=problem["status"], problem=problem)
        except EmepError as error:
            outcomes[place] = BatchOutcome(status=error.status, problem=document_of(error))
    answers = (
        ledger.submissions.submit_batch([(request, submitter) for _, request, submitter in good])
        if good
        else []
    )
    created = 0
    for (place, _, _), answer in zip(good, answers, strict=True):
        if isinstance(answer, EmepError):
            outcomes[place] = BatchOutcome(status=answer.status, problem=document_of(answer))
            continue
        view, is_new = answer
        created += is_new
        outcomes[place] = BatchOutcome(status=201 if is_new else 200, job=view)
    items = [outcome for outcome in outcomes if outcome is not None]
    return BatchAnswer(items=items, created=created, refused=sum(item.problem is not None for item in items))
