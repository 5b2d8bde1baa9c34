"""How long a person waits for the command line's answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from sqlalchemy import select
from tests.benchmarks.ledger.load import quantile
from tests.benchmarks.ledger.setting import databases, say, served

from emep.ledger.store.tables import Job
from emep.wire.base import JobState

ROUNDS = 5


def reads() -> None:
    """Every reading command as a process of its own, logging in included, with 2,000 jobs pending on 512
    nodes.
    """
    emep = Path(sys.executable).with_name("emep")
    for kind in databases():
        with served(kind, 512, 2000, busy=1.0, projects=40) as (engine, server, _, _):
            with engine.connect() as connection:
                waiting = connection.scalar(
                    select(Job.id).where(Job.state == JobState.PENDING.value).limit(1)
                )
            environment = {**os.environ, **server.environment()}
            commands = (
                ["queue"],
                ["nodes"],
                ["share"],
                ["history"],
                ["dlq", "list"],
                ["explain", str(waiting)],
            )
            for command in commands:
                took = []
                for _ in range(ROUNDS):
                    begin = time.perf_counter()
                    subprocess.run([emep, *command], env=environment, check=True, capture_output=True)
                    took.append(time.perf_counter() - begin)
                say(
                    kind,
                    f"emep {command[0]}, median",
                    quantile(took, 0.5),
                    "s",
                    1.0,
                    f"longest {max(took):.2f} s",
                )
