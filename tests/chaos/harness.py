"""The run: start everything, kill something every few seconds, start again what a service manager would, and
at the end gather the evidence."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import Engine
from tests.chaos.evidence import gather
from tests.chaos.model import Evidence, Outage, TaskRow
from tests.chaos.plane import ROOT
from tests.chaos.processes import MARK, NODE, Found, become_subreaper, find, kill_all, reap
from tests.chaos.services import Service, Services, clean_environment
from tests.chaos.settings import GRACE, LEASE_EXPIRY, ChaosSettings
from tests.chaos.workload import Workload

from emep.client import EmepClient, EmepError
from emep.demo.stack import program

_WEIGHTS = {"agent": 3, "supervisor": 3, "engine": 4, "wrapper": 1, "worker": 3}
"""How often each kind of process is killed, in proportion."""
_DAEMON_SHARE = 0.5
"""Of the kills at which a daemon may be killed."""
_PATIENCE = 300.0
"""Seconds that an outage waits for work that it could hurt."""
_LONGEST_WAIT = 8
"""Kills that are left out in a row to wait for a kind that is not there."""
_TURN = 0.5
_QUIET = 4.0
"""Seconds without a kill before an outage, so that what was killed has been reported."""


class Plane(Protocol):
    """A control plane that a run is held against."""

    daemons: tuple[str, ...]
    """Its services by name."""
    servers: tuple[str, ...]
    """Those of them that are API servers."""
    urls: tuple[str, ...]
    """Where these answer, in order."""
    agent_secret: str

    def start(self, services: Services) -> None:
        """Start it and wait until it is ready."""

    def victims(self) -> list[Found]:
        """Processes to kill beside the daemons, the agents and what these run."""

    def unstick(self) -> bool:
        """While all is to end: do what an operator would where something cannot; whether it was needed."""

    def tasks(self, engine: Engine) -> list[TaskRow]:
        """Airflow's tasks at the end."""

    def client(self) -> EmepClient:
        """An administrator's client."""

    def database(self) -> Engine:
        """The ledger's database."""


@dataclass
class Killing:
    """What was killed, when, and who it was."""

    time: float
    kind: str
    words: str


@dataclass
class Harness:
    """One run."""

    settings: ChaosSettings
    plane: Plane
    make_workload: Callable[..., Workload] = Workload
    say: Callable[[str], None] = print
    killed: list[Killing] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.settings.seed)
        self.services = Services(self.settings.folder)
        self._frozen: dict[str, tuple[float, list[Found]]] = {}
        self._freeze_at = self.settings.freeze_every
        self._seen: set[str] = set()
        self._waited = 0

    def run(self) -> Evidence:
        """Everything, from the first process to the evidence; nothing of it runs afterwards."""
        become_subreaper()
        left: list[str] = []
        try:
            self.plane.start(self.services)
            for number in range(self.settings.nodes):
                self.services.add(self._agent(f"n{number}", self.plane.urls[number % len(self.plane.urls)]))
            with self.plane.client() as client:
                self._wait_for_nodes(client)
                workload = self.make_workload(
                    self.settings, self.plane.urls[0], client, self.settings.folder / "agents"
                )
                self._chaos(workload)
                self._settle(workload)
            left = self._stop()
        finally:
            leaked = kill_all(self.settings.folder, self.services.sessions)
            reap(set())
        self.counted.update(workload.done)
        engine = self.plane.database()
        try:
            return gather(
                engine,
                self.settings.folder,
                probes=workload.probes,
                outages=self.outages,
                left_over=left or leaked,
                tasks=self.plane.tasks(engine),
            )
        finally:
            engine.dispose()

    def _agent(self, name: str, url: str) -> Service:
        folder = self.settings.folder
        site = ROOT / "tests" / "builders" / "chaos_site"
        env = {
            **clean_environment(),
            MARK: str(folder),
            NODE: name,
            "PYTHONPATH": f"{site}:{ROOT}",
            "EMEP_AGENT_TOKEN": self.plane.agent_secret,
            "OMP_NUM_THREADS": "1",
        }
        argv = [
            *(program("emep"), "agent", "--name", name, "--simulate", str(self.settings.gpus_per_node)),
            *("--state-dir", str(folder / "agents" / name), "--api-url", url),
            *("--cpu", "64", "--memory", "256Gi", "--report-every", "2s", "--connect-timeout", "10m"),
            *("--stop-grace", f"{GRACE:g}s", "--pass-env", MARK, "--pass-env", NODE),
        ]
        log = folder / "logs" / f"{name}.log"
        return Service(f"agent-{name}", "agent", argv, env, ROOT, log, _registered)

    def _wait_for_nodes(self, client: EmepClient) -> None:
        until = time.monotonic() + 120
        while client.nodes().total < self.settings.nodes:
            if time.monotonic() > until:
                raise RuntimeError("the agents have not registered")
            time.sleep(0.2)

    # ---- killing -------------------------------------------------------------------------------------------

    def _chaos(self, workload: Workload) -> None:
        outage_after = self.settings.kills // 2 if self.settings.outage else -1
        due = time.monotonic() + self.settings.kill_every
        # Nothing dies before there is something to lose.
        self._until(workload, time.monotonic() + 60, self._runs_something)
        while len(self.killed) < self.settings.kills:
            self._turn(workload)
            if time.monotonic() < due:
                continue
            due = max(due + self.settings.kill_every, time.monotonic())
            self._kill_something()
            if self.settings.freeze_every and len(self.killed) >= self._freeze_at:
                self._freeze_at += self.settings.freeze_every
                self._freeze()
            if len(self.killed) == outage_after:
                self._outage(workload)
                due = time.monotonic() + self.settings.kill_every
                outage_after = -1
            if len(self.killed) % 50 == 0:
                self.say(f"{len(self.killed)} kills: {dict(Counter(kill.kind for kill in self.killed))}")

    def _turn(self, workload: Workload | None) -> None:
        began = time.monotonic()
        self.services.tend()
        self._thaw()
        reap(self.services.own())
        if workload is not None:
            workload.turn()
        time.sleep(max(0.05, _TURN - (time.monotonic() - began)))

    def _until(
        self, workload: Workload | None, deadline: float, condition: Callable[[], bool] = lambda: False
    ) -> None:
        while time.monotonic() < deadline and not condition():
            self._turn(workload)

    def _runs_something(self) -> bool:
        return any(process.kind == "engine" for process in find(self.settings.folder))

    def _works_right_now(self) -> bool:
        """Whether an engine that lives has written a line within the last two seconds."""
        files = (self.settings.folder / "witness").glob("*.jsonl")
        newest = max((file.stat().st_mtime for file in files), default=0.0)
        return time.time() - newest < 2.0 and self._runs_something()

    def _kill_something(self) -> None:
        """One SIGKILL; daemons only where they have run long enough, of the others whose turn it is."""
        ripe = [
            name for name in self.plane.daemons if self.services.all[name].may_be_killed(self.settings.gap)
        ]
        if ripe and self.rng.random() < _DAEMON_SHARE:
            service = self.services.all[self.rng.choice(ripe)]
            service.send(signal.SIGKILL)
            self.killed.append(Killing(time.time(), service.kind, service.name))
            return
        targets: dict[str, list[Found]] = {}
        for process in [*find(self.settings.folder), *self.plane.victims()]:
            if process.kind in _WEIGHTS and process.node not in self._frozen:
                targets.setdefault(process.kind, []).append(process)
        kind = self._whose_turn(targets)
        if kind is None:
            return
        victim = self.rng.choice(sorted(targets[kind], key=lambda process: process.pid))
        if victim.kill():
            self.killed.append(Killing(time.time(), kind, f"pid {victim.pid} on {victim.node}"))

    def _whose_turn(self, targets: Mapping[str, object]) -> str | None:
        """The kind that is furthest behind its share; None where that is not here now, to wait for it.

        Agents are always there and engines are not: by chance alone a busy machine would see agents die.
        """
        kills = Counter(kill.kind for kill in self.killed)
        self._seen.update(targets)
        share = {kind: kills[kind] / _WEIGHTS[kind] for kind in self._seen}
        here = min(targets, key=lambda kind: (share[kind], self.rng.random()), default=None)
        if here is None or (share[here] > min(share.values()) + 1 and self._waited < _LONGEST_WAIT):
            self._waited += 1
            return None
        self._waited = 0
        return here

    # ---- freezing ------------------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """Stop a whole node past its leases: what ran there comes back as zombies with old epochs."""
        if self._frozen or self.settings.nodes < 2:
            return
        node = f"n{self.rng.randrange(self.settings.nodes)}"
        processes = [process for process in find(self.settings.folder) if process.node == node]
        for process in processes:
            process.send(signal.SIGSTOP)
        self._frozen[node] = (time.monotonic() + LEASE_EXPIRY + 4.0, processes)
        self.counted["nodes frozen"] += 1

    def _thaw(self, *, now: bool = False) -> None:
        for node, (until, processes) in list(self._frozen.items()):
            if now or time.monotonic() > until:
                for process in processes:
                    process.send(signal.SIGCONT)
                del self._frozen[node]

    # ---- the control plane is away -------------------------------------------------------------------------

    def _outage(self, workload: Workload) -> None:
        """Take the API away while jobs run; nothing else is killed meanwhile."""
        self._thaw(now=True)
        self._until(workload, time.monotonic() + _QUIET)
        self._until(workload, time.monotonic() + _PATIENCE, self._works_right_now)
        if not self._works_right_now():
            self.counted["outages left out, as nothing ran"] += 1
            return
        self.say(f"the control plane is away for {self.settings.outage:g} s")
        start = time.time()
        servers = [self.services.all[name] for name in self.plane.servers]
        for server in servers:
            self.services.down.add(server.name)
            server.send(signal.SIGKILL)
            self.killed.append(Killing(time.time(), server.kind, "for the outage"))
        self._until(None, time.monotonic() + self.settings.outage)
        self.services.down.difference_update(self.plane.servers)
        back = time.monotonic() + 240
        self._until(None, back, lambda: all(s.is_alive() and not s.starting for s in servers))
        self.outages.append(Outage(start, time.time()))
        self._until(workload, time.monotonic() + _QUIET)

    # ---- the end -------------------------------------------------------------------------------------------

    def _settle(self, workload: Workload) -> None:
        """No more kills and no more jobs: everything may end now."""
        self.say("settling")
        self._thaw(now=True)
        until = time.monotonic() + self.settings.settle
        while time.monotonic() < until:
            self._turn(None)
            with suppress(EmepError):
                workload.end_drains()
                live = workload.live()
                if not live and not workload.busy(live):
                    break
            if self.plane.unstick():
                self.counted["restarts for a task that stayed queued"] += 1
        workload.probe(limit=40)

    def _stop(self) -> list[str]:
        """End agents, then the control plane; what is left of them and of what they started, in words."""
        self.services.wait_ready(list(self.plane.daemons))
        agents = self.services.of_kind("agent")
        for agent in agents:
            self.services.down.add(agent.name)
            agent.send(signal.SIGTERM)
        for agent in agents:
            agent.end(60.0)
        left = self._left_over({"agent", "wrapper", "supervisor", "engine"})
        # The API servers last: whoever ends still talks to them.
        self.services.down.update(self.services.all)
        for name in reversed(list(self.services.all)):
            service = self.services.all[name]
            service.send(signal.SIGTERM)
            service.end(20.0)
        return left or self._left_over()

    def _left_over(self, kinds: Collection[str] = ()) -> list[str]:
        """Processes of these kinds (or of any) that still run, in words."""
        reap(self.services.own())
        return [
            f"{process.kind} (pid {process.pid}): {process.words}"
            for process in find(self.settings.folder, self.services.sessions)
            if not kinds or process.kind in kinds
        ]


def _registered(agent: Service) -> bool:
    """An agent's start-up is over once it has said that it offers its GPUs."""
    return " offers " in agent.said()
