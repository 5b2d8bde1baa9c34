"""The demo's processes, through the keeper: start, notice what has ended, stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


class DemoError(Exception):
    """The demo cannot go on; the text is one sentence for people. ``status`` is the command's exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    name: str
    code: int
    log: Path

    def sentence(self) -> str:
        """What happened, and where to read on."""
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"ended with status {self.code}"
        return f"{self.name} {how}; its last words are in {self.log}"


class Processes:
    """A context: everything that was started in it has ended when it is left, also by an exception."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._condition = threading.Condition()
        self._pids: dict[str, int] = {}
        self._ended: dict[str, Ended] = {}
        self._keeper: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None

    def __enter__(self) -> Processes:
        self.logs.mkdir(parents=True, exist_ok=True)
        plugins = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [plugins, os.environ.get("PYTHONPATH")]))
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "emep.demo.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        keeper = self._keeper
        if keeper is None or keeper.stdin is None:
            return
        keeper.stdin.close()
        # A second Ctrl-C must not leave processes behind: the keeper goes on by itself in any case.
        keeper.wait()
        if self._listener is not None:
            self._listener.join()
        if keeper.stdout is not None:
            keeper.stdout.close()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, nice: int = 0) -> None:
        """Start a process; its output is appended to ``logs/NAME.log``."""
        order = {
            "name": name,
            "argv": list(argv),
            "env": dict(env),
            "cwd": str(cwd),
            "log": str(self.log(name)),
            "nice": nice,
        }
        assert self._keeper is not None  # noqa: S101
        assert self._keeper.stdin is not None  # noqa: S101
        with self._condition:
            self._ended.pop(name, None)
        self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
        self._keeper.stdin.flush()

    def log(self, name: str) -> Path:
        """The process's log."""
        return self.logs / f"{name}.log"

    def ended(self, name: str) -> Ended | None:
        """How a process has ended; None while it runs (or is about to)."""
        with self._condition:
            return self._ended.get(name)

    def pid(self, name: str) -> int | None:
        """The process's id, once it was started."""
        with self._condition:
            return self._pids.get(name)

    def wait(self, name: str, timeout: float) -> Ended | None:
        """Wait for a process's end, at most ``timeout`` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: name in self._ended, timeout)
            return self._ended.get(name)

    def check(self, expected: Sequence[str] = ()) -> None:
        """Raise DemoError if a process has ended; those of ``expected`` may end with status 0."""
        with self._condition:
            gone = [one for one in self._ended.values() if one.name not in expected or one.code != 0]
            keeper_gone = self._keeper is not None and self._keeper.poll() is not None
        if keeper_gone:
            raise DemoError("the keeper of the demo's processes was killed; start the demo again")
        if gone:
            raise DemoError(gone[0].sentence())

    def _listen(self) -> None:
        assert self._keeper is not None  # noqa: S101
        assert self._keeper.stdout is not None  # noqa: S101
        for line in self._keeper.stdout:
            event = json.loads(line)
            with self._condition:
                if event["event"] == "started":
                    self._pids[event["name"]] = event["pid"]
                else:
                    name = event["name"]
                    self._ended[name] = Ended(name, event["code"], self.log(name))
                self._condition.notify_all()
        with self._condition:
            self._condition.notify_all()
