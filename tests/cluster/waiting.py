"""Waiting for a condition outside this process, with a sentence when it does not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.cluster.settings import ClusterError

T = TypeVar("T")


def until(condition: Callable[[], T], timeout_s: float, what: str, every_s: float = 0.05) -> T:
    """The condition's first value that is true. Raises ClusterError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise ClusterError(f"Waited {timeout_s:g} s in vain for {what}.")
        time.sleep(every_s)
