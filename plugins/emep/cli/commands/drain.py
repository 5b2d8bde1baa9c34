"""``emep drain``: give a node or a GPU no new work."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from emep.cli.common import UsageError, add_action_arguments, connect, print_json

if TYPE_CHECKING:
    from emep.client import Call, EmepClient

DESCRIPTION = """Give a node, or one GPU of it, no new work until `emep resume`.

What runs there may finish; with --now it is told to checkpoint, and goes back to its place in the queue.
A drain outlives restarts of the node's agent."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, how soon, and why."""
    add_target(parser)
    parser.add_argument("--now", action="store_true", help="tell what runs there to checkpoint and leave")
    add_action_arguments(parser)


def add_target(parser: argparse.ArgumentParser) -> None:
    """The node or GPU."""
    parser.add_argument("target", metavar="NODE[:GPU]", help="a node, or a GPU of it by its index")


def parse_target(text: str) -> tuple[str, int | None]:
    """``n1`` or ``n1:3``. Raises UsageError for an index that is no number."""
    name, colon, index = text.partition(":")
    if not name or (colon and not (index.isascii() and index.isdigit())):
        raise UsageError(f"{text!r} is neither NODE nor NODE:GPU, such as n1:3")
    return name, int(index) if colon else None


def run(args: argparse.Namespace) -> int:
    """Drain it and say what is left there."""
    from emep.client import operator_calls

    name, gpu = parse_target(args.target)
    with connect(args) as client:
        node = change(client, name, operator_calls.drain(name, gpu, now=args.now, reason=args.reason))
    if args.json:
        print_json(node)
        return 0
    jobs = sorted({entry["job_id"] for entry in _gpus(node, gpu) if entry["job_id"]})
    left = f"; on its GPUs {'is' if len(jobs) == 1 else 'are'} still {', '.join(jobs)}" if jobs else ""
    told = ", told to checkpoint and leave" if args.now and jobs else ""
    print(f"{args.target} {state_of(node, gpu)}{left}{told}")
    return 0


def change(client: EmepClient, name: str, call: Call[Any]) -> dict[str, Any]:
    """The node after ``call``. Raises EmepError where there is no such node."""
    from emep.client import EmepApiError, EmepError

    try:
        node: dict[str, Any] = client.raw(call)
    except EmepApiError as error:
        if error.status == 404 and error.field == "name":
            raise EmepError(f"there is no node {name!r}: `emep nodes` lists them") from error
        raise
    return node


def _gpus(node: dict[str, Any], gpu: int | None) -> list[dict[str, Any]]:
    return [entry for entry in node["gpus"] if gpu is None or entry["index"] == gpu]


def state_of(node: dict[str, Any], gpu: int | None) -> str:
    """The state of a node or GPU in words, such as ``is draining`` or ``is up``."""
    state = node["state"] if gpu is None else _gpus(node, gpu)[0]["state"]
    is_drain = node["drain"] if gpu is None else _gpus(node, gpu)[0]["drain"]
    also = ", and takes no new work" if is_drain and state not in ("draining", "drained") else ""
    return f"is {state}{also}"
