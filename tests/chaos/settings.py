"""What one chaos run is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_POLICY = Path(__file__).with_name("policy.yaml")
LEASE_EXPIRY, GRACE = 8.0, 5.0
"""Seconds, as in ``policy.yaml``."""


@dataclass(frozen=True)
class ChaosSettings:
    """Times are seconds."""

    folder: Path
    seed: int = 7
    kills: int = 30
    kill_every: float = 5.0
    servers: int = 1
    """API servers on one ledger (level ``api``); nodes take turns in which one they call."""
    nodes: int = 2
    gpus_per_node: int = 8
    load: int = 9
    """Jobs that are kept pending or running."""
    steps: tuple[int, int] = (15, 60)
    """Fewest and most steps of a job."""
    step_seconds: float = 0.4
    outage: float = 20.0
    """How long the control plane is down once; 0: never."""
    freeze_every: int = 12
    """After so many kills a whole node is frozen past its leases; 0: never."""
    gap: float = 3.0
    """A daemon is killed no sooner than so many times its start-up apart."""
    settle: float = 60.0
    """What jobs get to end in after the last kill; what is not through then goes back to the queue."""
    database_url: str = ""
    """PostgreSQL; empty: SQLite in the folder."""
    ports: tuple[int, int] = (18260, 18279)

    def policy_file(self) -> Path:
        """Write ``policy.yaml`` for this run: its jobs may write their evidence into the run's folder."""
        folder = self.folder.resolve()
        path = folder / "policy.yaml"
        path.write_text(f"{_POLICY.read_text()}roots: {{write: [{json.dumps(str(folder))}]}}\n")
        return path
