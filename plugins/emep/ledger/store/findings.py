"""Carries out the findings of ticks and reports one by one, so that a failing one stops no other."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlalchemy.exc import OperationalError

from emep.wire.errors import ConflictError, NotFoundError, UnavailableError

log = logging.getLogger(__name__)


def run_safely(step: Callable[..., object], *args: object) -> None:
    """Carry out one finding; it is no error if another server was faster.

    Raises UnavailableError and OperationalError: the database is away, and the other findings would fail too.
    """
    try:
        step(*args)
    except (ConflictError, NotFoundError) as error:
        log.debug("nothing to reclaim any more: %s", error)
    except (UnavailableError, OperationalError):
        raise
    except Exception:
        # One finding that cannot be carried out must not keep the others from being looked at.
        log.exception("a finding of the tick cannot be carried out")
