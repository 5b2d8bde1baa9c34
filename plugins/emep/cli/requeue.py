"""``emep requeue``: put a job back into the queue."""

from __future__ import annotations

import argparse

from emep.cli.common import add_action_arguments, connect, print_json

DESCRIPTION = """Put a job back into the queue.

One that runs is told to checkpoint and returns to its place, with its submission time. One that has ended
waits again; where an Airflow task asked for it, that task is cleared and asks again, as a new try."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job and the reason."""
    parser.add_argument("job", metavar="JOB", help="the job's id, as `emep queue` or `emep history` shows it")
    add_action_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Requeue the job and say what becomes of it."""
    from emep.client import calls

    with connect(args) as client:
        job = client.raw(calls.requeue(args.job, args.reason))
    if args.json:
        print_json(job)
    elif job["state"] == "yielding":
        print(f"job {job['id']} is told to checkpoint and returns to its place in the queue")
    elif job["state"] == "pending":
        print(f"job {job['id']} is pending")
    else:
        print(f"the task of job {job['id']} is cleared: it asks again with a new job")
    return 0
