"""``emep dlq``: dead letters, which are jobs that nothing runs again by itself."""

from __future__ import annotations

import argparse
from typing import Any

from emep.cli.common import (
    act,
    add_action_arguments,
    add_read_arguments,
    all_pages,
    connect,
    count,
    print_json,
    queued_again,
    since,
    task_name,
)
from emep.cli.table import print_table

DESCRIPTION = """Dead letters: jobs that waited longer than their queue allows, or used up tries or requeues.

`emep dlq list` shows them; look at the reason, then requeue or discard each."""
COLUMNS = ["JOB", "STATE", ">AGE", "QUEUE", "PROJECT", "USER", "TYPE", "TASK", "CODE", "WHY"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """list, requeue and discard."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|requeue|discard")
    listing = actions.add_parser("list", help="list them", description="List dead letters, newest job first.")
    listing.add_argument(
        "--state",
        choices=("open", "requeued", "discarded", "all"),
        default="open",
        help="those in this state (open)",
    )
    listing.add_argument("--limit", type=count, default=200, metavar="N", help="at most so many (200)")
    add_read_arguments(listing)
    for name, text in (
        ("requeue", "run the job again; an Airflow task that asked for it is cleared and asks again"),
        ("discard", "resolve it without running anything"),
    ):
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.add_argument("job", metavar="JOB", help="the job's id, as `emep dlq list` shows it")
        add_action_arguments(action)


def run(args: argparse.Namespace) -> int:
    """Carry the action out."""
    from emep.client import operator_calls

    if args.action == "list":
        with connect(args) as client:
            first = operator_calls.dead_letters(args.state, limit=min(args.limit, 1000))
            return _list(args, *all_pages(client, first, args.limit))
    if args.action == "requeue":
        call = operator_calls.requeue_dead_letter(args.job, args.reason)
        return act(args, call, lambda letter: queued_again(letter["job"]))
    call = operator_calls.discard_dead_letter(args.job, args.reason)
    return act(args, call, lambda letter: f"the dead letter of job {letter['id']} is discarded")


def _list(args: argparse.Namespace, letters: list[Any], total: int) -> int:
    if args.json:
        print_json({"items": letters, "total": total})
    elif not letters:
        print("no dead letters")
    else:
        print_table(COLUMNS, [row(letter) for letter in letters], optional=("TYPE", "USER", "QUEUE", "CODE"))
        if total > len(letters):
            print(f"({total - len(letters)} more; see --limit)")
    return 0


def row(letter: dict[str, Any]) -> list[object]:
    """A dead letter as a line of the table; a resolved one says who did what, and why."""
    job = letter["job"]
    why = letter["reason"]
    if letter["state"] != "open":
        why = f"{why} ({letter['state']} by {letter['resolved_by']}: {letter['resolution']})"
    return [
        letter["id"],
        letter["state"],
        since(letter["created_at"]),
        job["queue"],
        job["project"],
        job["user"],
        job["job_type"],
        task_name(job),
        letter["reason_code"],
        why,
    ]
