"""``emep simulate``: replay a workload on a cluster under a policy, or under two side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from emep.policy import PolicyError, default_policy, load_policy, load_preset, preset_names
from emep.policy.model import Policy
from emep.scheduling.model import Node
from emep.simulation.read.cluster import read_cluster
from emep.simulation.read.errors import InputError
from emep.simulation.read.failures import Failure, read_failures
from emep.simulation.read.jobs import JobSpec, read_jobs
from emep.simulation.read.swf import read_swf
from emep.simulation.report.outputs import check_folder, events_jsonl, jobs_csv, summary_json, write_folder
from emep.simulation.report.page import LABELS, Replay, jobs_by_state, render, show, show_ratio
from emep.simulation.report.summary import FIGURES, compare, summarize
from emep.simulation.run.replay import replay
from emep.wire.units import count_of, format_duration

_LINES_OF_PROGRESS = 10


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What is replayed, under whatever policy."""

    nodes: Sequence[Node]
    specs: Sequence[JobSpec]
    failures: Sequence[Failure]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to ``argparse``."""
    presets = ", ".join(preset_names()) or "none"
    parser.add_argument("cluster", metavar="CLUSTER.yaml", help="nodes, GPUs and their NVLink groups")
    parser.add_argument("jobs", metavar="JOBS.csv", help="the workload")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write; must not exist yet")
    parser.add_argument("--policy", metavar="P.yaml", help=f"policy file, or a preset's name ({presets})")
    parser.add_argument("--compare", metavar="OTHER.yaml", help="a second policy, put beside the first")
    parser.add_argument("--format", choices=("native", "swf"), default="native", help="form of the workload")
    parser.add_argument(
        "--swf-entities", action="store_true", help="with --format swf: charge groups as projects, and users"
    )
    parser.add_argument("--failures", metavar="F.csv", help="when nodes and GPUs go down and come up")
    parser.add_argument("--force", action="store_true", help="replace the folder of a former simulation")
    parser.add_argument("--json", action="store_true", help="print summary.json instead of a table")


def run(args: argparse.Namespace) -> int:
    """Simulate and write the folder; 2 with one line on standard error for bad input."""
    try:
        return _simulate(args)
    except (InputError, PolicyError) as problem:
        print(f"emep simulate: {problem}", file=sys.stderr)
        return 2


def _simulate(args: argparse.Namespace) -> int:
    inputs = [name for name in (args.cluster, args.jobs, args.policy, args.compare, args.failures) if name]
    check_folder(args.out, force=args.force, inputs=inputs)
    policies = [_policy(args.policy)]
    if args.compare is not None:
        policies.append(_policy(args.compare))
    nodes = read_cluster(args.cluster)
    specs = _read_workload(args)
    failures = read_failures(args.failures, nodes) if args.failures else []
    console = Console(stderr=True)
    replays = []
    for name, policy in _distinct(policies):
        replays.append(_replay(console, name, policy, _Inputs(nodes, specs, failures)))
    summary = replays[0].summary
    if len(replays) == 2:
        second = replays[1].summary
        summary = {
            **summary,
            "comparison": {
                "policy": replays[0].name,
                "other": replays[1].name,
                "summary": second,
                "differences": compare(replays[0].summary, second),
            },
        }
    title = f"{Path(args.jobs).name} on {Path(args.cluster).name}"

    def fill(folder: Path) -> None:
        _write_run(folder, replays[0])
        (folder / "summary.json").write_text(summary_json(summary), encoding="utf-8")
        (folder / "report.html").write_text(render(nodes, replays, title), encoding="utf-8")
        for other in replays[1:]:
            (folder / "compare").mkdir()
            _write_run(folder / "compare", other)
            (folder / "compare" / "summary.json").write_text(summary_json(other.summary), encoding="utf-8")

    write_folder(args.out, force=args.force, fill=fill, inputs=inputs)
    if args.json:
        print(summary_json(summary), end="")
    else:
        Console().print(_table(replays))
        print(f"{args.out}: jobs.csv, events.jsonl, summary.json, report.html")
    return 0


def _policy(name: str | None) -> tuple[str, Policy]:
    """The policy of a file, of a preset where no such file is, or the default."""
    if name is None:
        return "default policy", default_policy()
    if not Path(name).exists() and name in preset_names():
        return name, load_preset(name)
    return Path(name).name, load_policy(name)


def _distinct(policies: Sequence[tuple[str, Policy]]) -> list[tuple[str, Policy]]:
    """Names by which two policies can be told apart."""
    if len(policies) == 2 and policies[0][0] == policies[1][0]:
        return [(f"{name} ({number})", policy) for number, (name, policy) in enumerate(policies, 1)]
    return list(policies)


def _read_workload(args: argparse.Namespace) -> list[JobSpec]:
    if args.format == "native":
        return read_jobs(args.jobs)
    found = read_swf(args.jobs, entities=args.swf_entities)
    if found.left_out:
        print(
            f"{args.jobs}: left out {count_of(found.left_out, 'job')} without run time or processors",
            file=sys.stderr,
        )
    return found.jobs


def _replay(console: Console, name: str, policy: Policy, inputs: _Inputs) -> Replay:
    """One simulation, with a bar on a terminal and a few plain lines elsewhere."""
    nodes, specs, failures = inputs.nodes, inputs.specs, inputs.failures
    if not console.is_terminal:
        recording = replay(nodes, specs, policy, failures, progress=_Lines(name, len(specs)))
        return Replay(name, policy, recording, summarize(recording, policy))
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(name, total=len(specs))

        def advance(ended: int, _total: int, _now: float) -> None:
            bar.update(task, completed=ended)

        recording = replay(nodes, specs, policy, failures, progress=advance)
    return Replay(name, policy, recording, summarize(recording, policy))


class _Lines:
    """Progress as plain lines: one for every tenth of the jobs of a long replay, none for a short one."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._step = name, max(1000, -(-total // _LINES_OF_PROGRESS))

    def __call__(self, ended: int, total: int, now: float) -> None:
        if ended % self._step == 0:
            line = f"{self._name}: {ended} of {total} jobs ended, virtual time {format_duration(now)}"
            print(line, file=sys.stderr)


def _write_run(folder: Path, done: Replay) -> None:
    (folder / "jobs.csv").write_text(jobs_csv(done.recording), encoding="utf-8", newline="")
    (folder / "events.jsonl").write_text(events_jsonl(done.recording), encoding="utf-8", newline="")


def _table(replays: Sequence[Replay]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for done in replays:
        table.add_column(done.name, justify="right")
    if len(replays) > 1:
        table.add_column("second over first", justify="right")
    for key in FIGURES:
        cells = [show(key, done.summary[key]) for done in replays]
        if len(replays) > 1:
            cells.append(show_ratio(replays[0].summary, replays[1].summary, key))
        table.add_row(LABELS[key], *cells)
        if key == "jobs":
            for label, counts in jobs_by_state(replays):
                table.add_row(label, *counts)
    return table
