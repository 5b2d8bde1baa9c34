"""Many jobs that end within a second or two, on a machine that is busy with them: none is lost."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

pytestmark = pytest.mark.airflow
COUNT = int(os.environ.get("EMEP_TEST_SHORT_JOBS", "40"))


def test_of_many_short_jobs_none_is_lost_and_none_is_failed(loop):
    """Some end while their worker still waits, some after the deferral, most in between."""
    began = time.monotonic()
    inputs = [{"steps": 1, "step_seconds": (number % 9) / 4} for number in range(COUNT)]
    work = loop.trigger("loop_many", inputs=inputs)
    state = work.run.ended(60 + 30 * COUNT)
    tasks = {name: task for name, task in work.run.tasks().items() if name.startswith("job[")}
    print(f"{COUNT} short jobs took {time.monotonic() - began:.0f} s")
    assert Counter(task["state"] for task in tasks.values()) == {"success": COUNT}
    assert Counter(task["try_number"] for task in tasks.values()) == {1: COUNT}
    assert state == "success"
    assert not loop.airflow.held_gpus()
