"""Names and secrets of the ledger: job ids that sort by time, allocation ids, lease tokens."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading

LEASE_PREFIX = "emep-lease."
AGENT_PREFIX = "emep-agent."
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def _base32(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        value, digit = divmod(value, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


class JobIds:
    """Ids of 16 characters that sort by time: 9 of milliseconds, 7 (35 bits) that begin at random.

    Within one millisecond they count up, so jobs that one server takes in together keep their order.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._last = (-1, 0)

    def new(self, now: float) -> str:
        """An id for a job submitted at ``now`` (seconds since 1970)."""
        moment = int(now * 1000)
        with self._mutex:
            before, count = self._last
            # One bit less than there is room for: counting up within a millisecond never overflows.
            count = count + 1 if moment == before else secrets.randbits(34)
            self._last = (moment, count)
        return _base32(moment, 9) + _base32(count, 7)


job_ids = JobIds()


def allocation_id(job_id: str, epoch: int) -> str:
    """The one allocation of a job in an epoch."""
    return f"{job_id}-{epoch}"


def lease_token(key: bytes, allocation: str, epoch: int) -> str:
    """The bearer token of an allocation's holder.

    It is the same for each call with the same epoch, so an order can be repeated.
    """
    digest = hmac.new(key, f"{allocation}:{epoch}".encode(), hashlib.sha256).hexdigest()
    return LEASE_PREFIX + digest


def token_digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def same_secret(given: str, expected: str) -> bool:
    """Whether both are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())
