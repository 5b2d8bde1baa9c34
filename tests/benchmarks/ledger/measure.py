"""Figures of the control plane: ``python -m tests.benchmarks.ledger.measure [NAME ..]``.

Each runs on SQLite, and on PostgreSQL where ``EMEP_TEST_POSTGRES_URL`` names a database that may be
emptied. Every figure stands beside its limit, with CPU seconds beside the clock's: on a busy machine only
those compare. Nothing is asserted here.
"""

from __future__ import annotations

import logging
import os
import sys

import psutil
from tests.benchmarks.command import run_measures
from tests.benchmarks.ledger.idle import idle
from tests.benchmarks.ledger.load import Cpu
from tests.benchmarks.ledger.reads import reads
from tests.benchmarks.ledger.requests import batches, decisions, heartbeats, sustained
from tests.benchmarks.ledger.setting import SECONDS, database_name, databases, loaded, say
from tests.builders.ledger import make_settings

from emep.ledger.planning.planner import Planner
from emep.ledger.service import LedgerService
from emep.ledger.store.database import Database
from emep.policy import default_policy


def cycle() -> None:
    """Load, plan and commit with 10,000 pending on 4,096 nodes.

    The first cycle reads everything and writes why each job waits; the next ones read what has changed; a
    planner that is started again reads everything and finds most reasons written.
    """
    logging.getLogger("emep.audit").setLevel(logging.WARNING)
    for kind in databases():
        with loaded(kind, 4096, 10_000) as (engine, _, _, _):
            policy = default_policy()
            ledger = LedgerService(Database(engine), lambda: policy, make_settings())  # noqa: B023
            ledger.context.database.prepare()
            planner = Planner(ledger, "bench")
            cpu = Cpu(os.getpid(), database_name(kind))
            for name in ("first", "second", "third", "restart"):
                if name == "restart":
                    planner = Planner(ledger, "bench")
                before = cpu.used()
                done = planner.cycle()
                assert done is not None
                after = cpu.used()
                note = f"cpu {after[0] - before[0]:.2f} + database {after[1] - before[1]:.2f} s, "
                note += f"{len(done.plan.starts)} started, {len(done.seen.snapshot.pending)} pending"
                say(kind, f"whole cycle, {name}", done.seconds, "s", 3.0, note)
                for part, (wall, own) in done.parts.items():
                    say(kind, f"  {part}", wall, "s", note=f"cpu {own:.2f} s")


MEASURES = {
    "cycle": cycle,
    "decisions": decisions,
    "sustained": sustained,
    "batches": batches,
    "heartbeats": heartbeats,
    "reads": reads,
    "idle": idle,
}


def main() -> int:
    """Run what is named, or everything."""
    load = psutil.getloadavg()[0]
    print(f"load average {load:.1f} on {psutil.cpu_count()} cores; each load lasts {SECONDS:g} s")
    return run_measures(MEASURES, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
