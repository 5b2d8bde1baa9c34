"""``emep logs``: what a job wrote."""

from __future__ import annotations

import argparse
import sys
import time

from emep.cli.common import add_read_arguments, connect, print_json

DESCRIPTION = "Print the log of a job's present or last run."
PAUSE = 1.0
"""Seconds between looks at a log that grows."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job, and whether to stay."""
    parser.add_argument("job", metavar="JOB", help="the job's id, as `emep queue` shows it")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    add_read_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the log; 1 if the job has never run (and is not followed)."""
    from emep.cli import fail
    from emep.client import calls

    with connect(args) as client:
        job = client.raw(calls.job(args.job))
        while args.follow and job["allocation_id"] is None and job["ended_at"] is None:
            time.sleep(PAUSE)
            job = client.raw(calls.job(args.job))
        allocation = job["allocation_id"]
        if allocation is None:
            return fail(f"job {args.job} has not run: {job['reason'] or job['state']}")
        offset, text = 0, ""
        while True:
            chunk = client.raw(calls.logs(allocation, offset))
            text += chunk["text"]
            if not args.json:
                sys.stdout.write(chunk["text"])
                sys.stdout.flush()
            moved, offset = chunk["next_offset"] > offset, chunk["next_offset"]
            if not moved and (chunk["complete"] or not args.follow):
                break
            if not moved:
                time.sleep(PAUSE)
    if args.json:
        print_json(
            {"job_id": job["id"], "allocation_id": allocation, "text": text, "complete": chunk["complete"]}
        )
    return 0
