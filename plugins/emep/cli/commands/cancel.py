"""``emep cancel``: end a job."""

from __future__ import annotations

import argparse
from typing import Any

from emep.cli.common import act, add_api_argument

DESCRIPTION = "Cancel a job. One that runs is told to checkpoint and end, and is killed after its grace."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job and the reason."""
    parser.add_argument("job", metavar="JOB", help="the job's id, as `emep queue` shows it")
    parser.add_argument("--reason", default="", help="why; kept with the job")
    parser.add_argument("--json", action="store_true", help="print the job as the API answered it")
    add_api_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Cancel the job and say what becomes of it."""
    from emep.client import calls

    return act(args, calls.cancel(args.job, args.reason), _outcome)


def _outcome(job: dict[str, Any]) -> str:
    if job["state"] == "yielding":
        return f"job {job['id']} is told to checkpoint and end"
    return f"job {job['id']} is {job['state']}"
