"""Long polls: wakes asyncio waiters when a job or a node has news, from this API server or another.

One reader per process looks for new events, at once after a commit of its own process and every 0.3 s for
those of others, and wakes exactly those whose topic has an event. Waiting holds no session and no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import AsyncIterator

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from emep.ledger.store.database import Database
from emep.ledger.store.repository import clock_row
from emep.ledger.store.tables import Event

log = logging.getLogger(__name__)
POLL_SECONDS = 0.3
JOBS = "jobs"
NODES = "nodes"
"""News of any node."""


def node_topic(name: str) -> str:
    """Topic of one node's news."""
    return f"node {name}"


class Subscription:
    """One waiter: ``wait`` returns True after news since the last call, False at the time-out."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Called from any thread."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - a long poll is a wait with a time-out
        """Wait for news, at most ``timeout`` seconds."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout)
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Follower:
    """Reads new events in a thread and wakes the subscriptions that they concern."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscriptions: dict[str, set[Subscription]] = defaultdict(set)
        self._mutex = threading.Lock()
        self._poke = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = 0
        database.on_commit(self._poke.set)

    @property
    def is_stopping(self) -> bool:
        """True once the server stops: waiters should answer with what they have."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start reading."""
        with self._database.read() as session:
            self._seen = clock_row(session)[0]
        self._thread = threading.Thread(target=self._run, name="emep-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wake everybody, for the last time, and end the thread. Takes locks: not for a signal's handler."""
        self._stopping.set()
        self._poke.set()

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join(timeout=10)

    @contextlib.asynccontextmanager
    async def subscribe(self, *topics: str) -> AsyncIterator[Subscription]:
        """A subscription for the length of the block."""
        subscription = Subscription()
        with self._mutex:
            for topic in topics:
                self._subscriptions[topic].add(subscription)
        try:
            yield subscription
        finally:
            with self._mutex:
                for topic in topics:
                    self._subscriptions[topic].discard(subscription)
                    if not self._subscriptions[topic]:
                        del self._subscriptions[topic]

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._poke.wait(POLL_SECONDS)
            self._poke.clear()
            try:
                self._look()
            except SQLAlchemyError as error:
                log.warning("cannot read new events, will try again: %s", error)
        self._wake(None)

    def _look(self) -> None:
        # Events are numbered under the clock's lock, so they become visible in the order of their numbers.
        with self._database.read() as session:
            rows = session.execute(
                select(Event.id, Event.job_id, Event.node, Event.data)
                .where(Event.id > self._seen)
                .order_by(Event.id)
            ).all()
        if not rows:
            return
        topics: set[str] = set()
        for _, job_id, node, data in rows:
            if job_id is not None:
                topics.add(JOBS)
            for name in [node, *(data.get("nodes") or [])]:
                if name is not None:
                    topics |= {node_topic(name), NODES}
        self._seen = rows[-1].id
        self._wake(topics)

    def _wake(self, topics: set[str] | None) -> None:
        with self._mutex:
            chosen = self._subscriptions if topics is None else topics & self._subscriptions.keys()
            waiters = {waiter for topic in chosen for waiter in self._subscriptions[topic]}
        for waiter in waiters:
            waiter.wake()
