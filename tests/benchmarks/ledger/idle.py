"""How long GPUs are idle between two jobs, with real agents."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from tests.benchmarks.ledger.load import Calls, quantile
from tests.benchmarks.ledger.setting import database_url, databases, say
from tests.builders.databases import empty_engine
from tests.builders.emep_server import AGENT_SECRET, USERS, EmepServer

GPUS, ROUNDS = 4, 6
"""Simulated GPUs of the agent, and jobs on each of them, one after the other."""


def idle() -> None:
    """How long a GPU of an agent's is idle in a full queue.

    From the end of the process that had it (its last exit handler) to the first line that the next one's
    process executes. All jobs last equally long, so all GPUs change hands at once: the worst case for a
    machine with few cores. With the supervisor as it is, and with one that does next to nothing: what is left
    then is the agent's and the control plane's.
    """
    python, here = Path(sys.executable), Path(__file__).parent
    supervisors = {
        "emep-engine": f"env PYTHONPATH={here / 'engine_site'} {python.with_name('emep-engine')}",
        "bare": f"{python} -I -S {here / 'short_work.py'}",
    }
    for kind, (what, command) in itertools.product(databases(), supervisors.items()):
        with tempfile.TemporaryDirectory(prefix="emep-bench-") as name:
            folder = Path(name)
            url = database_url(kind, folder)
            empty_engine(url).dispose()
            server = EmepServer(folder, None if kind == "sqlite" else url).start()
            agent = _start_agent(server, folder, command)
            try:
                asyncio.run(_keep_busy(server, folder))
                gaps = _gaps(folder / "witness")
                spent = psutil.Process(agent.pid).cpu_times()
                each = (spent.children_user + spent.children_system) / len(
                    list((folder / "witness").iterdir())
                )
            finally:
                agent.terminate()
                agent.wait(30)
                server.stop()
        note = f"{len(gaps)} gaps; {each:.2f} s CPU a run, load {psutil.getloadavg()[0]:.1f}; "
        note += f"starting two bare interpreters takes {_start_of_two():.2f} s of it here"
        say(kind, f"GPU idle between two jobs ({what}), median", quantile(gaps, 0.5), "s", 1.0, note)
        say(kind, f"GPU idle between two jobs ({what}), p95", quantile(gaps, 0.95), "s", 1.0)


def _start_of_two() -> float:
    """Seconds that this machine takes now for what no agent can spare: a wrapper, and the work itself."""
    begin = time.perf_counter()
    for _ in range(2):
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    return time.perf_counter() - begin


def _start_agent(server: EmepServer, folder: Path, engine: str) -> subprocess.Popen[bytes]:
    options = {
        "--api-url": server.url,
        "--name": "n0",
        "--simulate": str(GPUS),
        "--state-dir": str(folder / "agent"),
        "--engine-command": engine,
    }
    command = [
        str(Path(sys.executable).with_name("emep")),
        "agent",
        *(word for pair in options.items() for word in pair),
    ]
    with (folder / "agent.log").open("wb") as output:
        environment = {**os.environ, "EMEP_AGENT_TOKEN": AGENT_SECRET}
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


async def _keep_busy(server: EmepServer, folder: Path) -> None:
    """Submit jobs of one GPU for several rounds, and wait for the last."""
    witness = folder / "witness"
    witness.mkdir()
    async with Calls(server.url) as calls:
        await calls.log_in("admin", USERS["admin"])
        for _ in range(GPUS * ROUNDS):
            given = {"seconds": 0.5, "witness": str(witness)}
            await calls.post(
                "/jobs", {"cpu": 0.1, "gpu_count": 1, "spec": {"engine": "merge", "input": given}}
            )
        deadline = time.time() + 180
        while len(list(witness.iterdir())) < GPUS * ROUNDS:
            if time.time() > deadline:
                raise RuntimeError(f"the jobs do not end:\n{(folder / 'agent.log').read_text()[-2000:]}")
            await asyncio.sleep(0.2)


def _gaps(witness: Path) -> list[float]:
    """Seconds from each run's end to the begin of the next on the same GPU."""
    runs: dict[str, list[tuple[float, float]]] = {}
    for path in witness.iterdir():
        run = json.loads(path.read_text())
        runs.setdefault(run["gpus"], []).append((run["begin"], run["end"]))
    return [
        after[0] - before[1]
        for of_gpu in runs.values()
        for before, after in itertools.pairwise(sorted(of_gpu))
    ]
