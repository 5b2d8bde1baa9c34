"""``emep policy``: check a policy file, and what it would change."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emep.cli.common import UsageError, add_read_arguments, connect, print_json
from emep.cli.table import print_table

if TYPE_CHECKING:
    from emep.policy import Policy

DESCRIPTION = "Validate a policy file as the server would, or show what it would change."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``check FILE`` and ``diff FILE``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|diff")
    check = actions.add_parser("check", help="validate a policy file; nothing is asked of the API")
    diff = actions.add_parser("diff", help="compare a policy file with the policy in force")
    for action in (check, diff):
        action.add_argument("file", type=Path, metavar="FILE", help="the policy file")
    add_read_arguments(diff)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 2 with one sentence (file, line, key, fix) if the file is refused."""
    policy = _load(args.file)
    if args.action == "check":
        print(f"{args.file}: valid; queues {', '.join(policy.queues) or 'none'}")
        return 0
    with connect(args) as client:
        from emep.client import operator_calls

        in_force = dict(client.raw(operator_calls.policy()))
        overrides = client.raw(operator_calls.fair_share())["overrides"]
    in_force.pop("problem", None)
    rows = changes(in_force, _with_overrides(policy, overrides).describe())
    if args.json:
        print_json([dict(zip(("key", "in_force", "file"), row, strict=True)) for row in rows])
    elif rows:
        print_table(
            ["KEY", "IN FORCE", "FILE"], [[key, _shown(now), _shown(then)] for key, now, then in rows]
        )
    else:
        print(f"{args.file}: the same as the policy in force")
    return 0


def _with_overrides(policy: Policy, overrides: Sequence[Mapping[str, Any]]) -> Policy:
    """The file's policy as it would be in force: weights that operators have set stay over it."""
    from emep.wire.entities import parse_entity

    names = {parse_entity(one["entity"]): float(one["weight"]) for one in overrides}
    usable = {
        name.policy_key: weight
        for name, weight in names.items()
        if name.kind != "queue" or name.path in policy.queues
    }
    return policy.with_weights(usable) if usable else policy


def _load(path: Path) -> Policy:
    from emep.policy import PolicyError, load_policy

    try:
        return load_policy(path)
    except PolicyError as error:
        raise UsageError(str(error)) from None


def changes(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, value in force, value of the file) of every key whose value would change; None: it is not there.

    Mappings are compared key by key, everything else as a whole.
    """
    left, right = dict(_leaves(now)), dict(_leaves(then))
    keys = sorted({*left, *right})
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def _leaves(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        path = f"{prefix}{key}"
        found += _leaves(item, f"{path}.") if isinstance(item, Mapping) else [(path, item)]
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
