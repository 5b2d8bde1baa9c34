"""The supervisor's side of a lease: heartbeats, directives and completion over HTTP. Imports no engine.

It runs in a thread of its own, so that neither a long checkpoint nor a busy engine ever delays a heartbeat.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engines.contract import BadInputError
from engines.supervisor.events import signals_held_back

if TYPE_CHECKING:
    from engines.supervisor.http import JsonPost

HEARTBEAT_SECONDS = 10.0
MAX_SILENCE_SECONDS = 600.0
ANSWER_SECONDS = 5.0
"""Least seconds to wait for an answer, however often the lease is renewed, to spare a busy API."""
COMPLETE_SECONDS = 120.0
"""How long a completion is tried; after that the node's agent reports for us."""
_GONE = {409, 410}
"""The lease is another's, or over: nothing that this run does counts any more."""


@dataclass(frozen=True)
class LeaseSettings:
    """What the environment says about the lease. The token is never printed."""

    api_url: str
    allocation_id: str
    epoch: int
    token: str = field(repr=False)
    heartbeat: float = HEARTBEAT_SECONDS
    max_silence: float = MAX_SILENCE_SECONDS
    complete: float = COMPLETE_SECONDS

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LeaseSettings | None:
        """None without ``EMEP_API_URL``. Raises BadInputError where the others are missing or no numbers."""
        url = environment.get("EMEP_API_URL")
        if not url:
            return None
        for name in ("EMEP_ALLOCATION_ID", "EMEP_LEASE_TOKEN"):
            if not environment.get(name):
                raise BadInputError(
                    f"{name} is missing; EMEP_API_URL needs it (leave both out to run alone)", field=name
                )
        return cls(
            url.rstrip("/"),
            environment["EMEP_ALLOCATION_ID"],
            int(number(environment, "EMEP_LEASE_EPOCH", 0)),
            environment["EMEP_LEASE_TOKEN"],
            number(environment, "EMEP_HEARTBEAT_SECONDS", HEARTBEAT_SECONDS),
            number(environment, "EMEP_MAX_SILENCE_SECONDS", MAX_SILENCE_SECONDS),
            number(environment, "EMEP_COMPLETE_SECONDS", COMPLETE_SECONDS),
        )


def number(environment: Mapping[str, str], name: str, default: float) -> float:
    """A number from the environment. Raises BadInputError where it is none or negative."""
    text = environment.get(name)
    if text is None or text == "":
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BadInputError(f"{name}={text!r} must be a number of at least 0", field=name)
    return value


@dataclass(frozen=True)
class Order:
    """What the supervisor is to do. ``directive``: continue, checkpoint_and_exit, abort."""

    directive: str
    reason: str
    grace_seconds: float | None = None


class Lease:
    """Renews one lease and passes on what the answers say.

    ``report`` gives the heartbeat's body without the epoch (checkpoint, progress); ``order`` takes directives
    other than continue, in the lease's thread.
    """

    def __init__(
        self,
        settings: LeaseSettings,
        report: Callable[[], dict[str, Any]],
        order: Callable[[Order], None],
        say: Callable[[str], None],
    ) -> None:
        self.settings, self._report, self._order, self._say = settings, report, order, say
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._making = threading.Lock()
        self._http: JsonPost | None = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self.lost = False
        """True once the control plane has said that the lease is over."""

    def start(self) -> None:
        """Begin with a heartbeat at once: it is what makes the job ``running``. Called again: nothing."""
        if self._thread.ident is None:
            with signals_held_back():
                self._thread.start()

    def beat_soon(self) -> None:
        """Send the next heartbeat now (a checkpoint is complete)."""
        self._wake.set()

    def stop(self) -> None:
        """End the heartbeats."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def complete(self, exit_code: int, result: dict[str, Any], message: str | None) -> bool:
        """Report the end; heartbeats go on meanwhile, so the lease does not run out.

        False where it was not taken.
        """
        body = {
            "epoch": self.settings.epoch,
            "exit_code": exit_code,
            "result": result,
            "message": message[:4096] if message else None,
        }
        deadline = time.monotonic() + self.settings.complete
        pause = 0.5
        while not self.lost:
            status, problem = self._post("complete", body)[:2]
            if status is not None and status < 300:
                return True
            if status is not None and status < 500 and status not in {408, 425, 429}:
                self._say(f"the completion was refused: {problem}")
                return False
            if time.monotonic() + pause > deadline:
                self._say(f"the completion could not be delivered: {problem}")
                return False
            self._stop.wait(pause)
            pause = min(2 * pause, 10.0)
        return False

    def _run(self) -> None:
        heard = time.monotonic()
        silent = False
        while not self._stop.is_set():
            beat = {"epoch": self.settings.epoch, **self._report()}
            status, problem, answer = self._post("heartbeat", beat)
            if status in _GONE:
                self.lost = True
                self._order(Order("abort", f"the lease is over: {problem}"))
                return
            if status is not None and status < 300:
                if silent:
                    self._say("the control plane answers again")
                heard, silent = time.monotonic(), False
                self._pass_on(answer)
            else:
                if not silent:
                    self._say(f"the control plane does not answer ({problem}); going on")
                silent = True
                if time.monotonic() - heard > self.settings.max_silence:
                    reason = f"no answer from the control plane for {self.settings.max_silence:g} s"
                    self._order(Order("checkpoint_and_exit", reason))
            self._wake.wait(self.settings.heartbeat)
            self._wake.clear()

    def _pass_on(self, answer: dict[str, Any]) -> None:
        directive = str(answer.get("directive", "continue"))
        if directive == "continue":
            return
        grace = answer.get("grace_seconds")
        seconds = float(grace) if isinstance(grace, int | float) else None
        self._order(Order(directive, f"the control plane says {directive}", seconds))

    def _client(self) -> JsonPost:
        """One for both threads; imported when the engine has been started, not before."""
        from engines.supervisor.http import JsonPost

        with self._making:
            if self._http is None:
                settings = self.settings
                self._http = JsonPost(
                    f"{settings.api_url}/allocations/{settings.allocation_id}/",
                    {"Authorization": f"Bearer emep-lease.{settings.token}"},
                    timeout=max(ANSWER_SECONDS, min(settings.heartbeat, 10.0)),
                )
            return self._http

    def _post(self, verb: str, body: dict[str, Any]) -> tuple[int | None, str, dict[str, Any]]:
        """Status (None: no answer), a sentence about it, the answer's JSON object."""
        try:
            status, phrase, content = self._client().post(verb, body)
        except Exception as error:  # whatever it is, the heartbeats must go on
            return None, f"{type(error).__name__}: {error}".replace(self.settings.token, "***"), {}
        return status, f"{status} {content.get('detail') or phrase}", content


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for an engine's process, without the lease, which it does not need."""
    return {name: value for name, value in environment.items() if name != "EMEP_LEASE_TOKEN"}


def current_environment() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)
