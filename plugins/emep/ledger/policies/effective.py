"""The policy in force: the file's, with the operators' weights over it, the same in every API server.

Reading it costs no more than reading the file's, because a cycle asks for it thousands of times. A thread
looks for changes in the database and keeps each version; a change of an override makes it look at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from emep.ledger.policies.source import PolicyProblem
from emep.ledger.policies.versions import digest_of, keep_version
from emep.ledger.store.database import Database
from emep.ledger.store.tables import FairShareOverride
from emep.policy.model import Policy
from emep.wire.entities import parse_entity
from emep.wire.errors import EmepError

log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
"""How often another API server's overrides are looked for; the file is looked at every two seconds."""
State = tuple[Policy, Mapping[str, float], Policy]
"""The file's policy, weights by entity, and both together; replaced as a whole, never changed."""


class EffectivePolicy:
    """Call it for the policy in force."""

    def __init__(self, source: Callable[[], Policy], database: Database) -> None:
        self._source = source
        self._database = database
        self._mutex = threading.Lock()
        self._refreshing = threading.Lock()
        base = source()
        self._state: State = (base, {}, base)
        self._kept: Policy | None = None
        self._digest = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self) -> Policy:
        """The policy; no I/O beyond a look at the file's time every two seconds."""
        base = self._source()
        state = self._state
        if base is not state[0]:
            state = self._replace(base, None)
        return state[2]

    @property
    def base(self) -> Policy:
        """The file's policy, without overrides."""
        self()
        return self._state[0]

    @property
    def problem(self) -> PolicyProblem | None:
        """Why the policy file is refused; None while it is what is in force."""
        self()
        problem: PolicyProblem | None = getattr(self._source, "problem", None)
        return problem

    @property
    def overrides(self) -> Mapping[str, float]:
        """Weights by entity, including entities that the file's policy does not know."""
        return self._state[1]

    @property
    def digest(self) -> str:
        """The name of the version in force."""
        policy = self()
        with self._mutex:
            if self._kept is not policy:
                return digest_of(policy)
            return self._digest

    def refresh(self) -> None:
        """Read the overrides now, and keep the version if it is new to this server."""
        with self._refreshing:
            self._refresh()

    def _refresh(self) -> None:
        with self._database.read() as session:
            rows = session.execute(select(FairShareOverride.entity, FairShareOverride.weight)).all()
        overrides = {entity: weight for entity, weight in rows}
        base = self._source()
        if base is not self._state[0] or overrides != self._state[1]:
            self._replace(base, overrides)
        policy = self._state[2]
        if policy is self._kept:
            return
        is_change = self._kept is not None
        digest = keep_version(self._database, policy, announce=is_change)
        with self._mutex:
            self._kept, self._digest = policy, digest

    def start(self) -> None:
        """Look at once, and then every second in a thread of its own."""
        self._try_refresh()
        self._thread = threading.Thread(target=self._run, name="emep-policy", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self._try_refresh()

    def _try_refresh(self) -> None:
        try:
            self.refresh()
        except (EmepError, SQLAlchemyError) as error:
            log.warning("cannot look at the overrides of shares, will try again: %s", error)

    def _replace(self, base: Policy, overrides: Mapping[str, float] | None) -> State:
        with self._mutex:
            known = self._state[1] if overrides is None else overrides
            self._state = (base, known, with_overrides(base, known))
            return self._state


def is_effective(base: Policy, entity: str) -> bool:
    """Whether an override of ``entity`` weighs anything under a policy: its queue may have gone."""
    try:
        name = parse_entity(entity)
    except EmepError:
        return False
    return name.kind != "queue" or name.path in base.queues


def with_overrides(base: Policy, overrides: Mapping[str, float]) -> Policy:
    """The file's policy with the weights of ``overrides``; those of queues that it has not are left out."""
    usable = {
        parse_entity(entity).policy_key: weight
        for entity, weight in sorted(overrides.items())
        if is_effective(base, entity)
    }
    return base.with_weights(usable) if usable else base
