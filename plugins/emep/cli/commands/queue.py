"""``emep queue``: pending and running jobs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from emep.cli.common import (
    UsageError,
    add_read_arguments,
    all_pages,
    connect,
    count,
    print_json,
    since,
    states,
)
from emep.cli.table import print_table

if TYPE_CHECKING:
    from emep.client import EmepClient

DESCRIPTION = "List pending and running jobs, those that run first."
LIVE = "running,yielding,starting,pending"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Filters, and how much is shown."""
    parser.add_argument(
        "--state", type=states, metavar="STATE[,..]", help=f"only these states (default: {LIVE})"
    )
    parser.add_argument("--all", action="store_true", help="every state, ended jobs too")
    parser.add_argument("--queue", help="only this queue")
    parser.add_argument("--project", help="only this project, with those below it")
    parser.add_argument("--limit", type=count, default=200, metavar="N", help="at most so many jobs (200)")
    add_read_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the queue. Raises UsageError for one that is not there."""
    from emep.client import calls

    wanted = () if args.all else (args.state or LIVE.split(","))
    with connect(args) as client:
        call = calls.jobs(wanted, queue=args.queue, project=args.project, limit=min(args.limit, 1000))
        jobs, total = all_pages(client, call, args.limit)
        if not jobs and args.queue is not None:
            check_queue(client, args.queue)
    if args.json:
        print_json({"items": jobs, "total": total})
        return 0
    if not jobs:
        print("no jobs" if args.all else "no job waits or runs")
        return 0
    order = {name: number for number, name in enumerate(LIVE.split(","))}
    jobs.sort(key=lambda job: (order.get(job["state"], len(order)), job["submitted_at"]))
    columns = ["JOB", "STATE", ">GPUS", "WHERE", "CLASS", "QUEUE", "PROJECT", "USER", "TYPE", ">TIME", "WHY"]
    print_table(columns, [row(job) for job in jobs], optional=("USER", "QUEUE", "TYPE", "PROJECT", "CLASS"))
    if total > len(jobs):
        print(f"({total - len(jobs)} more; see --limit)")
    return 0


def check_queue(client: EmepClient, name: str) -> None:
    """Raises UsageError, which names the queues there are, where ``name`` is none of them."""
    from emep.client import operator_calls

    known = sorted({one["queue"] for one in client.raw(operator_calls.fair_share())["entities"]})
    if name not in known:
        raise UsageError(f"--queue: there is no queue {name!r}; there are {', '.join(known)}")


def row(job: dict[str, Any]) -> list[object]:
    """A job as a line of the table; TIME is how long it has been in its state's phase."""
    phase = job["started_at"] if job["state"] in ("running", "yielding") else job["queued_at"]
    if job["ended_at"]:
        phase = job["started_at"] or job["submitted_at"]
    return [
        job["id"],
        job["state"],
        job["gpu_count"],
        where(job),
        job["priority"],
        job["queue"],
        job["project"],
        job["user"],
        job["job_type"],
        since(phase, job["ended_at"]),
        job["reason"],
    ]


def where(job: dict[str, Any]) -> str:
    """``n1:0-3`` for each node of a job that holds GPUs; node names alone for a CPU job."""
    from emep.cli.common import compact_indices

    if job["state"] not in ("starting", "running", "yielding"):
        return ""
    by_node: dict[str, list[int]] = {name: [] for name in job["nodes"]}
    for gpu in job["gpus"]:
        by_node.setdefault(gpu["node"], []).append(gpu["index"])
    return " ".join(f"{name}:{compact_indices(found)}" if found else name for name, found in by_node.items())
