"""``emep history``: jobs that have ended."""

from __future__ import annotations

import argparse
from typing import Any

from emep.cli.common import (
    add_read_arguments,
    all_pages,
    connect,
    count,
    print_json,
    since,
    states,
    task_name,
)
from emep.cli.table import print_table

DESCRIPTION = "List jobs that have ended, newest first: how long they waited and ran, and how they ended."
ENDED = "completed,failed,dead,cancelled,expired,rejected"
COLUMNS = [
    "JOB", "STATE", ">GPUS", "CLASS", "QUEUE", "PROJECT", "USER", "TYPE", "TASK", ">ENDED", ">WAITED",
    ">TOOK", ">EXIT", ">REQUEUES", "WHY",
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Filters, and how much is shown."""
    parser.add_argument(
        "--state", type=states, metavar="STATE[,..]", help=f"only these states (default: {ENDED})"
    )
    parser.add_argument("--queue", help="only this queue")
    parser.add_argument("--project", help="only this project, with those below it")
    parser.add_argument("--user", help="only this user's")
    parser.add_argument("--dag", metavar="DAG_ID", help="only jobs of this DAG's tasks")
    parser.add_argument("--run", metavar="RUN_ID", help="only jobs of this run's tasks")
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="at most so many jobs (50)")
    add_read_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the jobs."""
    from emep.client import calls

    call = calls.jobs(
        (args.state or ENDED.split(",")),
        queue=args.queue,
        project=args.project,
        user=args.user,
        dag_id=args.dag,
        run_id=args.run,
        limit=min(args.limit, 1000),
    )
    with connect(args) as client:
        jobs, total = all_pages(client, call, args.limit)
    if args.json:
        print_json({"items": jobs, "total": total})
    elif not jobs:
        print("no job has ended")
    else:
        optional = ("TASK", ">REQUEUES", "CLASS", "USER", "TYPE", "QUEUE", "PROJECT", ">EXIT")
        print_table(COLUMNS, [row(job) for job in jobs], optional=optional)
        if total > len(jobs):
            print(f"({total - len(jobs)} more; see --limit)")
    return 0


def row(job: dict[str, Any]) -> list[object]:
    """A job as a line of the table: ENDED is how long ago, TOOK from its first start to its end."""
    return [
        job["id"],
        job["state"],
        job["gpu_count"],
        job["priority"],
        job["queue"],
        job["project"],
        job["user"],
        job["job_type"],
        task_name(job),
        since(job["ended_at"]),
        since(job["submitted_at"], job["started_at"] or job["ended_at"]),
        since(job["started_at"], job["ended_at"]),
        job["exit_code"],
        job["requeues"],
        job["reason"],
    ]
