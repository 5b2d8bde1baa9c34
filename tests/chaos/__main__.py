"""``python -m tests.chaos``: kill things for a while and say whether every invariant held.

Exits 0 where all held, 1 with the offending events where one is broken, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if "AIRFLOW_HOME" not in os.environ:
    # Before anything imports Airflow, which makes files in it.
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="emep-chaos-home-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

from tests.chaos.harness import Harness, Plane
from tests.chaos.invariants import check_all
from tests.chaos.report import in_words, make_report
from tests.chaos.settings import ChaosSettings

POSTGRES = "EMEP_TEST_POSTGRES_URL"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    default = ChaosSettings(Path())
    found = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    found.add_argument(
        "--level",
        choices=["api", "airflow"],
        default="api",
        help="EMEP's API server alone, or a whole Airflow",
    )
    found.add_argument("--kills", type=int, default=default.kills, metavar="N")
    found.add_argument("--kill-every", type=float, default=default.kill_every, metavar="SECONDS")
    found.add_argument("--seed", type=int, default=default.seed)
    found.add_argument(
        "--servers", type=int, default=default.servers, help="API servers on one ledger (level api)"
    )
    found.add_argument("--nodes", type=int, default=default.nodes)
    found.add_argument("--gpus", type=int, default=default.gpus_per_node, help="GPUs of each node")
    found.add_argument("--load", type=int, default=default.load, help="jobs kept pending or running")
    found.add_argument("--steps", type=int, nargs=2, default=default.steps, metavar=("FEWEST", "MOST"))
    found.add_argument(
        "--outage",
        type=float,
        default=default.outage,
        metavar="SECONDS",
        help="once, in the middle (0: never)",
    )
    found.add_argument(
        "--freeze-every",
        type=int,
        default=default.freeze_every,
        metavar="KILLS",
        help="freeze a node past its leases (0: never)",
    )
    found.add_argument("--settle", type=float, default=default.settle, metavar="SECONDS")
    found.add_argument(
        "--database",
        choices=["sqlite", "postgres"],
        default="sqlite",
        help=f"postgres: an empty database of its own in {POSTGRES}; ALL IN IT IS DROPPED",
    )
    found.add_argument("--ports", type=int, nargs=2, default=default.ports, metavar=("FIRST", "LAST"))
    found.add_argument("--folder", type=Path, help="keep everything here (default: removed where all held)")
    found.add_argument("--report", type=Path, metavar="FILE", help="write the report as JSON")
    return found  # fmt: skip


def make_plane(level: str, settings: ChaosSettings) -> tuple[Plane, dict[str, Any]]:
    """The control plane, and what the harness does otherwise on it."""
    if level == "api":
        from tests.chaos.plane import ApiPlane

        return ApiPlane(settings), {}
    from tests.chaos.airflow_plane import AirflowPlane, DagWorkload

    return AirflowPlane(settings), {"make_workload": DagWorkload}


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit status."""
    args = parser().parse_args(arguments)
    url = os.environ.get(POSTGRES, "") if args.database == "postgres" else ""
    if args.database == "postgres" and not url:
        sys.stderr.write(f"--database postgres: set {POSTGRES} to an empty database\n")
        return 2
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="emep-chaos-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    settings = ChaosSettings(
        folder,
        seed=args.seed,
        kills=args.kills,
        kill_every=args.kill_every,
        servers=args.servers,
        nodes=args.nodes,
        gpus_per_node=args.gpus,
        load=args.load,
        steps=tuple(args.steps),
        outage=args.outage,
        freeze_every=args.freeze_every,
        settle=args.settle,
        database_url=url,
        ports=tuple(args.ports),
    )
    # A harness that is told to end takes everything with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    plane, special = make_plane(args.level, settings)
    harness = Harness(settings, plane, say=lambda words: print(words, flush=True), **special)
    evidence = harness.run()
    evidence.save(folder / "evidence.json")
    violations = check_all(evidence)
    report = make_report(harness, evidence, violations, time.monotonic() - began)
    print(in_words(report), flush=True)
    if args.report:
        args.report.write_text(json.dumps(report, indent=1))
    broken = any(violations.values())
    if broken or args.folder:
        print(f"everything is in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
