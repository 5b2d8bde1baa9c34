"""Garbage collection, put off while a plan is made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Put off the collection of cyclic garbage.

    A plan makes some 100,000 small objects and hardly a cycle: each full collection that they set off walks
    the caller's whole heap, which took a third of the time of a plan of 10,000 jobs.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
