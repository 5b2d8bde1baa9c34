"""The engine's processes: how many, on which devices, their messages and their ends. Imports no engine."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.supervisor.events import signals_held_back
from engines.supervisor.lease import without_secrets

_LOOK_SECONDS = 1.0
"""Seconds between two checks that a silent process still runs."""
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def split_environments(environment: Mapping[str, str], *, parallel: bool) -> list[dict[str, str]]:
    """One environment per engine process.

    A parallel engine has a process for each granted GPU, which sees that one alone; others have one that sees
    all. Granted are the devices that ``CUDA_VISIBLE_DEVICES`` or ``HIP_VISIBLE_DEVICES`` lists; where these
    are empty (simulated GPUs) ``EMEP_GPU_INDICES`` counts. On several nodes (``NNODES``, ``NODE_RANK``) ranks
    go on from node to node.
    """
    plain = without_secrets(environment)
    variable = next((name for name in DEVICE_VARIABLES if _entries(plain.get(name))), "EMEP_GPU_INDICES")
    devices = _entries(plain.get(variable)) if parallel else []
    local = max(1, len(devices))
    nodes = int(plain.get("NNODES") or 1) if parallel else 1
    first = int(plain.get("NODE_RANK") or 0) * local if nodes > 1 else 0
    result = []
    for index in range(local):
        own = dict(plain)
        if devices:
            own[variable] = devices[index]
        own["EMEP_RANK"], own["EMEP_WORLD_SIZE"] = str(first + index), str(nodes * local)
        own["EMEP_SUPERVISOR_PID"] = str(os.getpid())
        own.setdefault("PYTHONUNBUFFERED", "1")
        if local > 1:
            own.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // local)))
        result.append(own)
    return result


def _entries(text: str | None) -> list[str]:
    return [entry for entry in (text or "").replace(" ", "").split(",") if entry not in {"", "-1"}]


@dataclass
class Rank:
    """One engine process, and what it has said."""

    number: int
    process: subprocess.Popen[bytes]
    outcome: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    preempted: str | None = None
    progress: dict[str, Any] | None = None
    exit_code: int | None = None
    """As the operating system has it: minus the signal where one ended it."""
    _threads: list[threading.Thread] = field(default_factory=list, repr=False)

    @property
    def running(self) -> bool:
        """Whether its end has not been seen yet."""
        return self.exit_code is None

    def terminate(self) -> None:
        """Ask it to checkpoint and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


def start_ranks(
    spec_path: Path,
    environments: Sequence[dict[str, str]],
    on_message: Callable[[Rank, dict[str, Any]], None],
    on_exit: Callable[[Rank], None],
) -> list[Rank]:
    """Start the processes, from the main thread (they die with the thread that started them).

    ``on_message`` and ``on_exit`` are called in threads of their own, ``on_exit`` after the rank's last
    message.
    """
    ranks = []
    for environment in environments:
        read, write = os.pipe()
        with signals_held_back():
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "engines.supervisor.child", str(spec_path)],
                    env={**environment, "EMEP_CHILD_PIPE": str(write)},
                    pass_fds=[write],
                    stdin=subprocess.DEVNULL,
                )
            finally:
                os.close(write)
            rank = Rank(int(environment["EMEP_RANK"]), process)
            thread = threading.Thread(
                target=_follow,
                args=(rank, read, on_message, on_exit),
                name=f"rank-{rank.number}",
                daemon=True,
            )
            thread.start()
        ranks.append(rank)
    return ranks


def _follow(
    rank: Rank,
    read: int,
    on_message: Callable[[Rank, dict[str, Any]], None],
    on_exit: Callable[[Rank], None],
) -> None:
    for line in _lines(rank.process, read):
        try:
            message = json.loads(line)
        except ValueError:
            continue  # the last line of a process killed while it wrote
        on_message(rank, message)
    # The pipe's end comes before the process's; nothing else reaps it.
    rank.process.wait()
    on_exit(rank)


def _lines(process: subprocess.Popen[bytes], read: int) -> Iterator[bytes]:
    """What a process writes, by line, until it closes the pipe or has ended.

    The pipe alone does not tell: a process that the engine has forked, and that outlives it, holds it open.
    """
    rest = b""
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while True:
            ended = process.poll() is not None
            if select.select([pipe], [], [], 0.0 if ended else _LOOK_SECONDS)[0]:
                data = pipe.read(1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
            elif ended:
                break
    if rest:
        yield rest
