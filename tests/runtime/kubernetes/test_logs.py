"""A log that is streamed, broken off and opened again is complete, in order, and has nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emep.kubernetes.logs import TAIL_BYTES, LogLines, unseen

LINES = [
    b"2026-11-29T23:00:00.1Z a\n",
    b"2026-11-29T23:00:00.123456789Z b b\n",
    b"2026-11-29T23:00:01Z \n",
    b"2026-11-29T23:00:01.000000001Z d\n",
    b"2026-11-29T23:00:02.5Z no end",
]
TEXT = b"a\nb b\n\nd\nno end"


@given(st.lists(st.integers(0, len(b"".join(LINES))), max_size=8))
def test_however_the_stream_is_cut(cuts: list[int]) -> None:
    whole, lines = b"".join(LINES), LogLines()
    ends = [*sorted(cuts), len(whole)]
    pieces = [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert b"".join(map(lines.feed, pieces)) + lines.finish() == TEXT


@given(st.integers(0, len(b"".join(LINES))), st.integers(0, 4))
def test_a_stream_that_is_opened_again_repeats_nothing(cut: int, again: int) -> None:
    whole, lines = b"".join(LINES), LogLines()
    taken = lines.feed(whole[:cut])
    lines.reopened()
    since = lines.since
    # The API gives whole seconds again, or more.
    rest = [line for line in LINES if since is None or line[:19] >= since[:19].encode()] or LINES[again:]
    taken += lines.feed(b"".join(rest)) + lines.finish()
    assert taken == TEXT


def test_what_is_no_line_of_the_log_is_shown_as_it_is() -> None:
    assert LogLines().feed(b"unable to retrieve container logs\n") == b"unable to retrieve container logs\n"


def test_after_a_restart_the_log_goes_on_where_what_was_kept_ends() -> None:
    log = b"".join(b"line %d\n" % number for number in range(5000))
    kept = log.index(b"line 3000\n")
    tail = log[kept - TAIL_BYTES : kept]
    assert unseen(log, kept, tail) == log[kept:]
    assert unseen(log, 0, b"") == log


def test_after_a_rotation_the_tail_is_found_and_where_it_is_not_all_is_new() -> None:
    log = b"".join(b"line %d\n" % number for number in range(5000))
    kept = log.index(b"line 3000\n")
    tail = log[kept - TAIL_BYTES : kept]
    rotated = log[log.index(b"line 2000\n") :]
    assert unseen(rotated, kept, tail) == log[kept:]
    assert unseen(log[log.index(b"line 4000\n") :], kept, tail) == log[log.index(b"line 4000\n") :]
