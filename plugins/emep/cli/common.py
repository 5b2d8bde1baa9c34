"""Shared by the commands: the API's address, JSON or a table, and times for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from emep.wire.units import format_duration

if TYPE_CHECKING:
    from emep.client import Call, EmepClient


class UsageError(Exception):
    """The command line, or a file it names, is wrong: one sentence, exit 2."""


def add_api_argument(parser: argparse.ArgumentParser, **more: Any) -> None:
    """``--api-url``, for every command that calls the API."""
    parser.add_argument(
        "--api-url",
        metavar="URL",
        help="Airflow's API server, such as http://localhost:8080 (default: EMEP_API_URL)",
        **more,
    )


def add_read_arguments(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--api-url``, for read commands."""
    parser.add_argument("--json", action="store_true", help="print what the API answered, as JSON")
    add_api_argument(parser)


STATES = (
    "pending",
    "starting",
    "running",
    "yielding",
    "completed",
    "failed",
    "cancelled",
    "rejected",
    "expired",
    "dead",
)


def states(text: str) -> list[str]:
    """States of jobs, separated by commas. Raises ArgumentTypeError that names an unknown one."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        if name not in STATES:
            raise argparse.ArgumentTypeError(f"{name!r} is no state of a job; there are {', '.join(STATES)}")
    return found


def count(text: str) -> int:
    """A number of lines, at least one. Raises ArgumentTypeError for what is none."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"a whole number, 1 or more, not {text!r}")
    return int(text)


def add_action_arguments(parser: argparse.ArgumentParser, *, inherit: bool = False) -> None:
    """``--reason``, ``--json`` and ``--api-url``, for what operators do.

    ``inherit``: the last two are arguments of the parser above as well, whose values count where these are
    not given.
    """
    parser.add_argument("--reason", default="", help="why; kept in the audit")
    default: dict[str, Any] = {"default": argparse.SUPPRESS} if inherit else {}
    parser.add_argument(
        "--json", action="store_true", help="print what the API answered instead of a sentence", **default
    )
    add_api_argument(parser, **default)


def task_name(job: dict[str, Any]) -> str:
    """``dag/run/task[map index]`` of the Airflow task that asked for a job; nothing for a job without one."""
    task = job.get("airflow")
    if not task:
        return ""
    index = f"[{task['map_index']}]" if task["map_index"] >= 0 else ""
    return f"{task['dag_id']}/{task['run_id']}/{task['task_id']}{index}"


def connect(args: argparse.Namespace) -> EmepClient:
    """A client from the environment and ``--api-url``. Raises EmepConfigurationError."""
    from emep.client import EmepClient, Retry

    # A person waits: two more tries within a second and a half, not the operators' patience.
    return EmepClient.from_environment(url=args.api_url, retry=Retry(attempts=3, first=0.4))


def act(args: argparse.Namespace, call: Call[Any], say: Callable[[Any], str]) -> int:
    """Send an operator's request and print its outcome; ``say`` puts the answer into one sentence.

    With ``--json`` the answer itself is printed. Returns the exit status.
    """
    with connect(args) as client:
        answer = client.raw(call)
    if args.json:
        print_json(answer)
    else:
        print(say(answer))
    return 0


def queued_again(job: dict[str, Any]) -> str:
    """What becomes of a job that has ended and is requeued."""
    if job["state"] == "pending":
        return f"job {job['id']} is pending"
    return f"the task of job {job['id']} is cleared: it asks again with a new job"


def all_pages(client: EmepClient, first: Call[Any], limit: int | None = None) -> tuple[list[Any], int]:
    """The items of a paged list, up to ``limit``, and how many there are."""
    from dataclasses import replace

    items: list[Any] = []
    call = first
    while True:
        page = client.raw(call)
        items.extend(page["items"])
        following = page.get("next")
        if not following or (limit is not None and len(items) >= limit):
            return items[:limit], int(page["total"])
        call = replace(first, params={**first.params, "next": following})


def print_json(document: Any) -> None:
    """A document, indented, as the API answered it."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    print()


def since(moment: str | None, until: str | None = None) -> str:
    """How long ago an ISO time was (or how long before ``until``), as ``3m12s``; ``-`` for none."""
    if not moment:
        return "-"
    end = _time(until) if until else datetime.now(UTC)
    return format_duration(max(0.0, (end - _time(moment)).total_seconds()))


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def compact_indices(indices: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2,5``."""
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in _spans(sorted(indices)))


def _spans(indices: list[int]) -> Iterator[tuple[int, int]]:
    start = previous = None
    for index in indices:
        if start is None or previous is None:
            start = index
        elif index != previous + 1:
            yield start, previous
            start = index
        previous = index
    if start is not None and previous is not None:
        yield start, previous
