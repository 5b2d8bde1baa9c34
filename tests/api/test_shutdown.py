"""The server is told to stop at whatever moment."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal, sys
from types import SimpleNamespace
from sqlalchemy import create_engine
from emep.api.app import _answer_on_shutdown
from emep.ledger.store.database import Database
from emep.ledger.long_poll import Follower

follower = Follower(Database(create_engine("sqlite://")))
told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
with _answer_on_shutdown(SimpleNamespace(follower=follower)):
    # As when the signal comes while this thread is just setting them.
    with follower._stopping._cond, follower._poke._cond:
        signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGTERM]
    assert follower._stopping.wait(60) and follower._poke.wait(60)
assert follower.is_stopping
print("stopped")
"""


def test_the_signal_does_not_lock_up_the_thread_that_it_interrupts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr[-2000:]
