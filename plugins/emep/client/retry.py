"""When a call is sent again, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass

import httpx

from emep.client.errors import retry_after

_NOT_PROCESSED = frozenset({429, 503})
"""The server says that it did nothing: any call may be repeated."""
_GATEWAY = frozenset({502, 504})
"""It is unknown whether the server did it: only idempotent calls may be repeated."""


@dataclass(frozen=True)
class Retry:
    """Exponential backoff with jitter. ``attempts`` counts the first one; delays are seconds."""

    attempts: int = 4
    first: float = 0.3
    factor: float = 2.0
    maximum: float = 10.0

    def delay_after_response(self, response: httpx.Response, attempt: int, repeatable: bool) -> float | None:
        """Seconds until the next attempt, or None: the response is the answer. ``attempt`` starts at 1."""
        status = response.status_code
        again = status in _NOT_PROCESSED or (repeatable and status in _GATEWAY)
        if not again or attempt >= self.attempts:
            return None
        asked = retry_after(response)
        return self._delay(attempt) if asked is None else min(asked, 60.0)

    def delay_after_error(self, error: httpx.TransportError, attempt: int, repeatable: bool) -> float | None:
        """Seconds until the next attempt, or None: give up. What was never sent may always be repeated."""
        never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        hopeless = isinstance(error, httpx.UnsupportedProtocol)
        if attempt >= self.attempts or hopeless or not (never_sent or repeatable):
            return None
        return self._delay(attempt)

    def _delay(self, attempt: int) -> float:
        longest = min(self.maximum, self.first * self.factor ** (attempt - 1))
        return longest * random.uniform(0.5, 1.0)


NO_RETRY = Retry(attempts=1)
