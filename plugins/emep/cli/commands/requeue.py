"""``emep requeue``: put a job back into the queue."""

from __future__ import annotations

import argparse
from typing import Any

from emep.cli.common import act, add_action_arguments, queued_again

DESCRIPTION = """Put a job back into the queue.

One that runs is told to checkpoint and returns to its place, with its submission time. One that has ended
waits again; where an Airflow task asked for it, that task is cleared and asks again, as a new try."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job and the reason."""
    parser.add_argument("job", metavar="JOB", help="the job's id, as `emep queue` or `emep history` shows it")
    add_action_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Requeue the job and say what becomes of it."""
    from emep.client import operator_calls

    return act(args, operator_calls.requeue(args.job, args.reason), _outcome)


def _outcome(job: dict[str, Any]) -> str:
    if job["state"] == "yielding":
        return f"job {job['id']} is told to checkpoint and returns to its place in the queue"
    return queued_again(job)
