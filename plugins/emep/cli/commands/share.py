"""``emep share``: fair shares, and weights set over the policy file's."""

from __future__ import annotations

import argparse
import math
from typing import Any

from emep.cli.common import UsageError, act, add_action_arguments, add_read_arguments, connect, print_json
from emep.cli.table import print_table

DESCRIPTION = """Show fair shares: queues with the projects and users below them, as the order compares them.

USED is billed and decayed GPU-hours, TARGET its share of what it and its siblings have used; among siblings
the one with the highest deficit, (TARGET - USED) / TARGET, is served first. SCORE is that of a waiting job of
the queue's default class. `emep share set` and `unset` change a weight over the policy file's."""
ENTITIES = "queue:NAME, a project (org/team), or a user in one (org/team@user)"
COLUMNS = [
    "ENTITY", ">WEIGHT", ">FILE", ">SHARE", ">HELD", ">USED", ">TARGET", ">DEFICIT", ">RANK", ">OVERALL",
    ">SCORE",
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The tree, or set and unset."""
    parser.add_argument("--queue", help="only the tree of this queue")
    add_read_arguments(parser)
    actions = parser.add_subparsers(dest="action", metavar="[set|unset]")
    setting = actions.add_parser(
        "set", help="set a weight over the policy file's", description="Set a weight over the policy file's."
    )
    setting.add_argument("entity", metavar="ENTITY", help=ENTITIES)
    setting.add_argument("weight", metavar="WEIGHT", help="0 or more; 0: served after everybody else")
    unsetting = actions.add_parser(
        "unset",
        help="let the policy file's weight count again",
        description="Let the policy file's weight count again.",
    )
    unsetting.add_argument("entity", metavar="ENTITY", help=ENTITIES)
    for action in (setting, unsetting):
        add_action_arguments(action, inherit=True)


def run(args: argparse.Namespace) -> int:
    """Show the shares, or change one."""
    from emep.client import operator_calls

    if args.action == "set":
        weight = parse_weight(args.weight)
        return act(args, operator_calls.set_share(args.entity, weight, args.reason), _is_set)
    if args.action == "unset":
        with connect(args) as client:
            client.raw(operator_calls.unset_share(args.entity, args.reason))
        if args.json:
            print_json({"entity": args.entity, "override": None})
        else:
            print(f"{args.entity} has the policy file's weight again")
        return 0
    with connect(args) as client:
        document = client.raw(operator_calls.fair_share())
    return _show(args, document)


def _is_set(override: dict[str, Any]) -> str:
    return f"{override['entity']} has weight {override['weight']:g}, set by {override['set_by']}"


def parse_weight(text: str) -> float:
    """A weight. Raises UsageError for what is none."""
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise UsageError(f"WEIGHT: a number, 0 or more, not {text!r}")
    return weight


def _show(args: argparse.Namespace, document: dict[str, Any]) -> int:
    """Print the tree. Raises UsageError for a queue that is not there."""
    entities = [one for one in document["entities"] if args.queue in (None, one["queue"])]
    if args.queue is not None and not entities:
        raise UsageError(f"--queue: there is no queue {args.queue!r}: `emep share` lists them")
    if args.json:
        print_json({**document, "entities": entities})
        return 0
    optional = (">OVERALL", ">HELD", ">SCORE", ">FILE", ">TARGET")
    print_table(COLUMNS, [row(one) for one in entities], optional=optional)
    for one in document["overrides"]:
        why = f": {one['reason']}" if one["reason"] else ""
        idle = "" if one["effective"] else " (no effect: the policy has no such entity)"
        print(f"{one['entity']} has weight {one['weight']:g} by {one['set_by']}{why}{idle}")
    return 0


def row(one: dict[str, Any]) -> list[object]:
    """An entity as a line of the table, indented below its parent."""
    return [
        "  " * one["depth"] + (one["entity"] if one["level"] != "user" else one["entity"].partition("@")[2]),
        f"{one['weight']:g}",
        "-" if one["weight"] == one["policy_weight"] else f"{one['policy_weight']:g}",
        f"{one['share']:.1%}",
        f"{one['gpu_hours']:.2f}",
        f"{one['used_gpu_hours']:.2f}",
        f"{one['target_gpu_hours']:.2f}",
        "last" if one["deficit"] is None else f"{one['deficit']:+.3f}",
        one["rank"],
        one["overall_rank"],
        None if one["score"] is None else f"{one['score']:.2f}",
    ]
