"""Retries of tasks that ask for GPUs: the policy file's numbers, and pauses that differ from task to task.

A retry is spent by the job's own failures alone; lost infrastructure and preemption stay within the try.
Airflow's own backoff is computed from dag, task and logical date, so the mapped tasks of one run would all
come back in the same second.
"""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryDecision, RetryPolicy

from emep.policy import PolicyError, default_policy, load_policy
from emep.policy.model import RetryPolicy as RetryNumbers
from emep.settings import policy_file

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

log = logging.getLogger(__name__)


class JitteredBackoff(RetryPolicy):
    """Pause up to ``backoff * 2**n`` seconds before the n-th retry (from 0), and at most ``max_backoff``.

    The first half of the pause is fixed, and the second half is random.
    """

    def __init__(self, backoff: float, max_backoff: float) -> None:
        self.backoff, self.max_backoff = backoff, max_backoff

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """A retry after the pause; how many there are is the task's ``retries``."""
        task: Any = context["task"] if context and "task" in context else None
        # Clearing a task raises max_tries: its retries count from there.
        first = 1 if task is None or not task.retries else max_tries - task.retries + 1
        full = min(self.backoff * 2.0 ** min(max(0, try_number - first), 60), self.max_backoff)
        return RetryDecision.retry(delay=timedelta(seconds=full * random.uniform(0.5, 1.0)))

    def serialize(self) -> dict[str, Any]:
        """Its numbers."""
        return {"backoff": self.backoff, "max_backoff": self.max_backoff}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> JitteredBackoff:
        """From what ``serialize`` made."""
        return cls(data["backoff"], data["max_backoff"])


def retry_numbers() -> RetryNumbers:
    """``retries`` of the policy file, or of the default policy if the file cannot be read.

    The API server refuses such a file with the reason.
    """
    path = policy_file()
    if path is None:
        return default_policy().retries
    try:
        status = path.stat()
        return _read(path, (status.st_mtime_ns, status.st_size))
    except (PolicyError, OSError) as error:
        log.warning("retries are those of the default policy: %s", error)
        return default_policy().retries


@lru_cache(maxsize=4)
def _read(path: Path, stamp: tuple[int, int]) -> RetryNumbers:
    """The file's numbers, cached until the file changes, because every DAG file asks for them."""
    return load_policy(path).retries


RETRIES = retry_numbers()
RETRY_DELAY = timedelta(seconds=RETRIES.backoff)
MAX_RETRY_DELAY = timedelta(seconds=RETRIES.max_backoff)
JITTER = JitteredBackoff(RETRIES.backoff, RETRIES.max_backoff)
"""Defaults of the operators; in their signatures, where Airflow finds them for mapped tasks too."""
