"""A steady mix of jobs: classes that preempt each other, 1 to 8 GPUs, some with a process per GPU, some deaf;
cancels, drains, and completions by epochs that are over."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.model import Probe
from tests.chaos.settings import ChaosSettings

from emep.client import Call, EmepApiError, EmepClient, EmepConnectionError, EmepError, calls, lease_token
from emep.client.retry import NO_RETRY
from emep.wire.allocations import Completion, Heartbeat
from emep.wire.jobs import JobRequest, JobView

LIVE = ("pending", "starting", "running", "yielding")
CLASSES = (("merge", "low", 4), ("merge", "normal", 4), ("merge", "high", 3), ("eval", "normal", 1))
SIZES = ((1, 8), (2, 5), (4, 4), (8, 2))
_PEOPLE = (("default", "alice"), ("default", "bob"), ("research", "carol"))


def job_input(settings: ChaosSettings, rng: random.Random) -> dict[str, Any]:
    """SPEC.input of the chaos engine."""
    return {
        "steps": rng.randint(*settings.steps),
        "step_seconds": settings.step_seconds,
        "checkpoint_every": rng.choice([2, 3, 5]),
        # One that does not listen is killed after its grace.
        "deaf": rng.random() < 0.08,
    }


def kind_of_job(settings: ChaosSettings, rng: random.Random) -> tuple[str, str, int]:
    """Queue, class and GPUs; those of a high class ask for much, so that they preempt."""
    queue, priority, _ = rng.choices(CLASSES, [entry[2] for entry in CLASSES])[0]
    size = rng.choice([4, 8]) if priority == "high" else rng.choices(*zip(*SIZES, strict=True))[0]
    return queue, priority, min(size, settings.gpus_per_node)


class Workload:
    """Submits, cancels, drains and probes through the API; what the API does not take for now is left out."""

    def __init__(self, settings: ChaosSettings, api_url: str, client: EmepClient, agents: Path) -> None:
        self.settings, self.client, self._url, self._agents = settings, client, api_url, agents
        self.rng = random.Random(settings.seed + 1)
        self.done: Counter[str] = Counter()
        self.probes: list[Probe] = []
        self._probed: set[tuple[str, int]] = set()
        self._drained: dict[str, float] = {}
        self._next_cancel = self._next_drain = 0.0
        self._number = 0

    def live(self) -> list[JobView]:
        """Jobs that have not ended. Raises EmepError."""
        return [JobView.model_validate(item) for item in self.client.jobs(LIVE, limit=200).items]

    def turn(self) -> None:
        """One round: keep the load, sometimes cancel, drain and probe. An API that is away is no error."""
        try:
            live = self.live()
            for _ in range(self.settings.load - self.busy(live)):
                self.submit()
            self._cancel(live)
            self._drain()
        except EmepConnectionError:
            self.done["calls while the API was away"] += 1
        except EmepApiError as error:
            if error.status < 500:
                raise
            self.done[f"answers {error.status}"] += 1
        self.probe()

    def busy(self, live: list[JobView]) -> int:
        """How much of the load there is. Raises EmepError."""
        return len(live)

    def submit(self) -> None:
        """One job of the mix. Raises EmepError."""
        self._number += 1
        queue, priority, size = kind_of_job(self.settings, self.rng)
        project, user = self.rng.choice(_PEOPLE)
        by_rank = size == 2 and self.rng.random() < 0.4
        engine = "evolve_candidates" if by_rank else "chaos_steps"
        request = JobRequest(
            queue=queue,
            priority=priority,
            project=project,
            user=user,
            gpu_count=size,
            cpu=0.1,
            memory="64Mi",
            topology={"required": "node"},
            idempotency_key=f"chaos-{self.settings.seed}-{self._number}",
            spec={
                "engine": engine,
                "input": job_input(self.settings, self.rng),
                "output_uri": str(self._number),
            },
        )
        self.client.submit_job(request)
        self.done["jobs submitted"] += 1

    def _cancel(self, live: list[JobView]) -> None:
        now = time.monotonic()
        if now < self._next_cancel or not live:
            return
        self._next_cancel = now + self.rng.uniform(8, 20)
        with suppress(EmepApiError):
            self.client.cancel(self.rng.choice(live).id, "chaos")
            self.done["cancels"] += 1

    def _drain(self) -> None:
        now = time.monotonic()
        for node, until in list(self._drained.items()):
            if now > until:
                self._node_call(node, "resume", {"reason": "chaos"})
                del self._drained[node]
        if now < self._next_drain or self._drained or self.settings.nodes < 2:
            return
        self._next_drain = now + self.rng.uniform(25, 45)
        node = f"n{self.rng.randrange(self.settings.nodes)}"
        if self._node_call(node, "drain", {"reason": "chaos", "now": self.rng.random() < 0.5}):
            self._drained[node] = now + self.rng.uniform(3, 8)

    def _node_call(self, node: str, verb: str, body: dict[str, Any]) -> bool:
        try:
            self.client.raw(Call("POST", f"/nodes/{node}/{verb}", body=body))
        except EmepApiError as error:
            self.done[f"{verb} answered {error.status}"] += 1
            return False
        self.done[f"{verb}s"] += 1
        return True

    def end_drains(self) -> None:
        """Resume what is drained still."""
        for node in list(self._drained):
            with suppress(EmepError):
                self._node_call(node, "resume", {"reason": "chaos"})
                del self._drained[node]

    # ---- old epochs ----------------------------------------------------------------------------------------

    def probe(self, limit: int = 1) -> None:
        """Complete and renew in the name of runs whose job has gone on without them: each must be refused."""
        for order in self._stale_orders(limit):
            key = (order["allocation_id"], order["epoch"])
            with EmepClient(self._url, auth=lease_token(order["lease_token"]), retry=NO_RETRY) as holder:
                forged = {"metrics": {"epoch": order["epoch"], "steps": 0, "zombie": True}}
                completion = Completion(epoch=order["epoch"], exit_code=0, result=forged)
                self._attempt(order, holder, calls.complete(key[0], completion))
                self._attempt(order, holder, calls.heartbeat(key[0], Heartbeat(epoch=key[1])))
            self._probed.add(key)

    def _attempt(self, order: dict[str, Any], holder: EmepClient, call: Call[Any]) -> None:
        try:
            holder.raw(call)
        except EmepApiError as error:
            status = error.status
        except EmepError:
            return
        else:
            status = 200
        if status < 500:
            self.probes.append(
                Probe(order["job_id"], order["allocation_id"], order["epoch"], time.time(), status)
            )
            self.done["old epochs probed"] += 1

    def _stale_orders(self, limit: int) -> list[dict[str, Any]]:
        newest: dict[str, int] = {}
        orders = []
        for path in self._agents.glob("*/runs/*/order.json"):
            try:
                order = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            orders.append(order)
            newest[order["job_id"]] = max(newest.get(order["job_id"], 0), order["epoch"])
        stale = [
            order
            for order in orders
            if order["epoch"] < newest[order["job_id"]]
            and (order["allocation_id"], order["epoch"]) not in self._probed
        ]
        return stale[:limit]
