"""Signals and threads wake the supervisor whenever they come; none is lost, none is in another's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.supervisor.events import JUDGED_SIGNALS, Events, signals_held_back

INTERRUPT_EVERY_INSTRUCTION = """
import signal, sys
from engines.supervisor.stop_request import StopRequest

stop, interrupted = StopRequest(), 0
signal.signal(signal.SIGTERM, stop.on_signal)

def trace(frame, event, argument):
    global interrupted
    frame.f_trace_opcodes = True
    if event == "opcode":
        interrupted += 1
        signal.raise_signal(signal.SIGTERM)
    return trace

assert not stop.is_set()
sys.settrace(trace)
signal.raise_signal(signal.SIGTERM)
sys.settrace(None)
assert stop.is_set()
print(interrupted)
"""


@pytest.fixture
def events() -> Iterator[Events]:
    events = Events()
    yield events
    events.close()


def wait_until_it_sleeps(thread: int) -> None:
    """Until a thread of this process waits for something (by its kernel id)."""
    stat = Path(f"/proc/self/task/{thread}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.005)


def test_a_signal_that_another_thread_is_given_wakes_the_main_thread(events: Events) -> None:
    main = threading.get_native_id()

    def take_a_signal() -> None:
        wait_until_it_sleeps(main)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with events.signals():
        thread = threading.Thread(target=take_a_signal)
        thread.start()
        event = events.get(timeout=60)
        thread.join()
    assert event == ("signal", signal.SIGTERM)


def test_what_threads_put_comes_in_order_and_none_is_lost(events: Events) -> None:
    def put(name: str) -> None:
        for number in range(20_000):
            events.put(name, number)

    threads = [threading.Thread(target=put, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    taken: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(40_000):
        event = events.get(timeout=60)
        assert event is not None
        taken[event[0]].append(event[1])
    for thread in threads:
        thread.join()
    assert taken == {"a": list(range(20_000)), "b": list(range(20_000))}
    assert events.get(timeout=0) is None


def test_more_than_the_pipe_holds_can_wait(events: Events) -> None:
    for number in range(70_000):
        events.put("n", number)
    assert [events.get(timeout=0) for _ in range(70_000)] == [("n", number) for number in range(70_000)]


def test_a_signal_comes_through_a_full_pipe(events: Events) -> None:
    for number in range(70_000):
        events.put("n", number)
    with events.signals():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(70_000):
            events.get(timeout=0)
        assert events.get(timeout=60) == ("signal", signal.SIGINT)


def test_what_was_held_back_before_is_taken_then_and_held_back_again(events: Events) -> None:
    with signals_held_back():
        signal.raise_signal(
            signal.SIGTERM
        )  # to this thread; others of the tests' process may take what comes
        with events.signals():
            assert events.get(timeout=60) == ("signal", signal.SIGTERM)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) >= JUDGED_SIGNALS


def test_handlers_are_as_before_afterwards(events: Events) -> None:
    def settings() -> list[object]:
        woken = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(woken)
        return [woken, *(signal.getsignal(number) for number in JUDGED_SIGNALS)]

    before = settings()
    with events.signals():
        assert not set(settings()) & set(before)
    assert settings() == before


def test_a_stop_request_may_be_interrupted_by_the_next_at_every_instruction() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT_EVERY_INSTRUCTION],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2
