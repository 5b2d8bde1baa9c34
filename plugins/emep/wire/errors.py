"""The errors by which the ledger and the API refuse a request, each with its HTTP status and field.

No Airflow, no SQLAlchemy: the API makes problem details of these (RFC 9457), the services only raise them.
"""

from __future__ import annotations

from typing import Any


class EmepError(Exception):
    """A refusal in one sentence.

    ``code`` is stable, ``field`` names what to fix, ``extra`` goes into the answer.
    """

    status = 400
    title = "Refused"
    code = "refused"

    def __init__(
        self, message: str, *, code: str | None = None, field: str | None = None, **extra: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.field = field
        self.extra = extra


class NotAuthenticatedError(EmepError):
    """No credentials, or ones that are not valid (401)."""

    status, title, code = 401, "Not authenticated", "not_authenticated"


class ForbiddenError(EmepError):
    """The caller is known and may not do this (403)."""

    status, title, code = 403, "Forbidden", "forbidden"


class NotFoundError(EmepError):
    """The named object does not exist (404)."""

    status, title, code = 404, "Not found", "not_found"


class ConflictError(EmepError):
    """The request does not fit the present state (409)."""

    status, title, code = 409, "Conflict", "conflict"


class IllegalMoveError(ConflictError):
    """The move is not in the table of states (409)."""

    code = "illegal_move"


class StaleEpochError(ConflictError):
    """The caller acts for an epoch that is over; it is refused everywhere and told to abort (409)."""

    code = "stale_epoch"

    def __init__(self, message: str, **extra: Any) -> None:
        super().__init__(message, directive="abort", **extra)


class InvalidError(EmepError):
    """Input that can never be accepted (422)."""

    status, title, code = 422, "Invalid", "invalid"


class RejectedJobError(InvalidError):
    """A job that can never run; the ledger keeps it as ``rejected`` (422)."""

    title, code = "Job rejected", "rejected"


class TooLargeError(EmepError):
    """More bytes than the route takes (413)."""

    status, title, code = 413, "Too large", "too_large"


class TooManyError(EmepError):
    """The caller has reached a limit (429); the request may fit after ``retry_after`` seconds."""

    status, title, code = 429, "Too many", "too_many"
    retry_after = 10


class UnavailableError(EmepError):
    """Not now: the database is busy or the policy file is broken; the caller may try again (503)."""

    status, title, code = 503, "Unavailable", "unavailable"
