"""The fragmentation study: how long jobs that need whole NVLink groups or nodes wait, by placement strategy.

``python -m emep.simulation.studies.fragmentation OUT`` replays the same churn under ``pack``, ``spread``,
first fit and random placement, for several seeds, and writes ``fragmentation.csv`` and ``fragmentation.svg``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emep.policy import default_policy
from emep.scheduling.model import Gpu, Node
from emep.simulation.read.cluster import read_cluster
from emep.simulation.read.jobs import JobSpec
from emep.simulation.report.outputs import write_files
from emep.simulation.run.replay import replay
from emep.simulation.studies.generate import Churn, churn
from emep.simulation.studies.strategies import RandomFit, Strategy, first_fit
from emep.wire.units import count_of

STRATEGIES = ("pack", "spread", "first fit", "random")
SEEDS = tuple(range(42, 52))


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean wait of the jobs that need a whole group or node, in one replay."""

    strategy: str
    seed: int
    mean_wait: float
    jobs: int


def equal_nodes(count: int = 100, gpus: int = 8, group: int = 4) -> tuple[Node, ...]:
    """The study's cluster: equal nodes whose GPUs form NVLink groups."""
    return tuple(
        Node(
            name=f"n{number:03d}",
            gpus=tuple(Gpu(index, nvlink_group=f"n{number:03d}/{index // group}") for index in range(gpus)),
        )
        for number in range(count)
    )


def measure(nodes: Sequence[Node], specs: Sequence[JobSpec], strategy: str, seed: int) -> Measured:
    """Replay under one strategy; the default policy otherwise (EASY backfill)."""
    placement = "spread" if strategy == "spread" else "pack"
    asked = [replace(spec, job=replace(spec.job, placement=placement)) for spec in specs]
    other: Strategy | None = None
    if strategy == "first fit":
        other = first_fit
    elif strategy == "random":
        other = RandomFit(seed)
    done = replay(nodes, asked, default_policy(), strategy=other)
    waits = [
        outcome.wait
        for outcome in done.outcomes
        if outcome.spec.job.nvlink_required or outcome.spec.job.topology_required
    ]
    return Measured(strategy, seed, sum(waits) / len(waits), len(waits))


def study(
    nodes: Sequence[Node], jobs: int, seeds: Sequence[int] = SEEDS, load: float = 0.9
) -> Iterator[Measured]:
    """Every strategy on every seed; a third of the jobs of 4 and 8 GPUs need a whole group or node."""
    gpus = sum(len(node.gpus) for node in nodes)
    for seed in seeds:
        specs = churn(Churn(jobs=jobs, gpus=gpus, load=load, constrained=1 / 3), seed)
        for strategy in STRATEGIES:
            yield measure(nodes, specs, strategy, seed)


def wins(found: Sequence[Measured], strategy: str = "pack") -> int:
    """On how many seeds the strategy has the lowest mean wait of all."""
    by_seed: dict[int, dict[str, float]] = {}
    for one in found:
        by_seed.setdefault(one.seed, {})[one.strategy] = one.mean_wait
    return sum(waits[strategy] == min(waits.values()) for waits in by_seed.values())


def means(found: Sequence[Measured]) -> dict[str, float]:
    """Mean over seeds of each strategy's mean wait."""
    return {
        strategy: sum(one.mean_wait for one in found if one.strategy == strategy)
        / max(1, sum(one.strategy == strategy for one in found))
        for strategy in STRATEGIES
    }


def picture(found: Sequence[Measured], title: str) -> str:
    """A bar a strategy (its mean over seeds) and a dot a seed, as a small SVG for light and dark pages."""
    width, height, left, base = 520, 240, 60, 200
    top = max(one.mean_wait for one in found) or 1.0
    average = means(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="12" fill="#7d8a99"><title>{title}</title>',
        f'<text x="{left}" y="14">{title}</text>',
    ]
    for place, strategy in enumerate(STRATEGIES):
        x = left + 20 + place * 110
        y = base - 160 * average[strategy] / top
        parts.append(f'<rect x="{x}" y="{y:.1f}" width="60" height="{base - y:.1f}" fill="#3b82c4"/>')
        parts.append(
            f'<text x="{x + 30}" y="{y - 5:.1f}" text-anchor="middle">{average[strategy]:.0f} s</text>'
        )
        parts.append(f'<text x="{x + 30}" y="{base + 18}" text-anchor="middle">{strategy}</text>')
        for one in found:
            if one.strategy == strategy:
                dot = base - 160 * one.mean_wait / top
                parts.append(f'<circle cx="{x + 72}" cy="{dot:.1f}" r="2.5" fill="#d9782d"/>')
    parts.append(f'<path d="M{left} {base}H{width - 10}" stroke="#7d8a99"/></svg>')
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study and write its table and picture."""
    parser = argparse.ArgumentParser(
        prog="python -m emep.simulation.studies.fragmentation", description=__doc__
    )
    parser.add_argument("out", help="folder to write to")
    parser.add_argument("--cluster", metavar="CLUSTER.yaml", help="other nodes than 100 x 8 in groups of 4")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth node of it only")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    args = parser.parse_args(arguments)
    nodes = read_cluster(args.cluster)[:: args.every] if args.cluster else equal_nodes()
    found = []
    for one in study(nodes, args.jobs, args.seeds, args.load):
        found.append(one)
        jobs = count_of(one.jobs, "job")
        sys.stdout.write(f"seed {one.seed}, {one.strategy}: {one.mean_wait:.1f} s ({jobs})\n")
        sys.stdout.flush()
    gpus = sum(len(node.gpus) for node in nodes)
    size = f"{count_of(len(nodes), 'node')}, {count_of(gpus, 'GPU')}, load {args.load:g}"
    title = f"Mean wait of jobs that need a whole group or node: {size}"
    rows = "".join(f"{one.seed},{one.strategy},{one.mean_wait:.3f},{one.jobs}\n" for one in found)
    files = {
        "fragmentation.csv": f"seed,strategy,mean_wait,jobs\n{rows}",
        "fragmentation.svg": picture(found, title),
    }
    write_files(Path(args.out), files)
    for strategy, wait in means(found).items():
        sys.stdout.write(
            f"{strategy}: {wait:.1f} s, lowest on {wins(found, strategy)} of {len(args.seeds)} seeds\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
