"""``emep explain``: why a job waits, every term of its score, its estimated start."""

from __future__ import annotations

import argparse
from typing import Any

from emep.cli.common import add_read_arguments, connect, print_json
from emep.cli.table import print_table, printable

DESCRIPTION = "Say why a job waits, with its position, every term of its score, and its estimated start."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job."""
    parser.add_argument("job", metavar="JOB", help="the job's id, as `emep queue` shows it")
    add_read_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    from emep.client import calls

    with connect(args) as client:
        answer = client.raw(calls.explain(args.job))
    if args.json:
        print_json(answer)
        return 0
    print(printable(answer["sentence"]))
    if answer["state"] == "pending":
        print()
        print_table(["fact", "value"], [[f"{name}:", value] for name, value in facts(answer)], header=False)
    return 0


def facts(answer: dict[str, Any]) -> list[tuple[str, object]]:
    """The explanation's facts as (name, value)."""
    deficit = answer["deficit"]
    if deficit is None:
        factor = "0.25"
    else:
        factor = f"clamp(1 {'-' if deficit < 0 else '+'} {abs(deficit):.4g}, 0.25, 2)"
    known: list[tuple[str, object]] = [("position", answer["position"])]
    known += [(reason["code"], reason["text"]) for reason in answer["reasons"]]
    known += [
        ("class value", answer["class_value"]),
        ("deficit", "weight 0: served last" if deficit is None else round(deficit, 4)),
        ("score", f"{answer['score']:g} = {answer['class_value']:g} x {factor}"),
        ("order key", ", ".join(map(str, answer["order_key"]))),
        ("estimated start", answer["estimate_text"] or answer["estimated_start"]),
    ]
    return known
