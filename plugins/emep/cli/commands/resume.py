"""``emep resume``: let a node or a GPU take work again."""

from __future__ import annotations

import argparse

from emep.cli.commands.drain import add_target, change, parse_target, state_of
from emep.cli.common import add_action_arguments, compact_indices, connect, print_json

DESCRIPTION = """Let a node, or one GPU of it, take work again after `emep drain`.

A node that was taken out of service because it failed its jobs, or is on probation since, is back at once.

A GPU that was drained by itself is resumed by itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What and why."""
    add_target(parser)
    add_action_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Resume it and say what stays drained."""
    from emep.client import operator_calls

    name, gpu = parse_target(args.target)
    with connect(args) as client:
        node = change(client, name, operator_calls.resume(name, gpu, reason=args.reason))
    if args.json:
        print_json(node)
        return 0
    drained = [entry["index"] for entry in node["gpus"] if entry["drain"]]
    rest = ""
    if gpu is None and drained:
        rest = f"; drained by themselves: {name}:{compact_indices(drained)}"
    elif gpu is not None and node["drain"]:
        rest = f"; its node is drained: emep resume {name}"
    print(f"{args.target} {state_of(node, gpu)}{rest}")
    return 0
