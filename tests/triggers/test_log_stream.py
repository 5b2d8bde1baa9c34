from __future__ import annotations

import pytest

from emep.triggers.log_stream import MAX_LINE, LogStream


def test_whole_lines_come_out_and_the_rest_waits():
    stream = LogStream("a")
    assert stream.feed("one\ntw", 6, False) == ["one"]
    assert stream.feed("o\nthree\n", 14, False) == ["two", "three"]


def test_the_last_line_needs_no_end_once_the_log_is_complete():
    stream = LogStream("a")
    assert stream.feed("one\nlast", 8, True) == ["one", "last"]
    assert stream.complete
    assert stream.flush() == []


def test_the_next_allocation_begins_at_its_own_beginning():
    stream = LogStream("a")
    stream.feed("unfinished", 10, False)
    assert stream.turn_to("b") == ["unfinished"]
    assert (stream.allocation_id, stream.offset, stream.complete) == ("b", 0, False)


def test_turning_to_the_same_or_to_nothing_changes_nothing():
    stream = LogStream("a", 5)
    assert stream.turn_to("a") == stream.turn_to(None) == []
    assert (stream.allocation_id, stream.offset) == ("a", 5)


def test_a_position_is_after_the_last_line_shown_in_bytes():
    stream = LogStream("a")
    text = "größe\nhalb ü"
    stream.feed(text, len(text.encode()), False)
    position = stream.position()
    again = LogStream.at(position)
    rest = text.encode()[again.offset :].decode()
    assert rest == "halb ü"
    assert again.feed(rest + "!\n", 99, False) == ["halb ü!"]


def test_an_endless_line_is_shown_in_pieces():
    stream = LogStream("a")
    assert stream.feed("x" * (MAX_LINE + 1), MAX_LINE + 1, False) == ["x" * (MAX_LINE + 1)]
    assert stream.position()["offset"] == MAX_LINE + 1


def test_windows_line_ends_are_cut():
    assert LogStream("a").feed("one\r\ntwo\r", 9, True) == ["one", "two"]


@pytest.mark.parametrize(
    "position",
    [None, "a", {}, {"allocation_id": "a", "offset": -1}, {"offset": 3}, {"allocation_id": 1, "offset": 3}],
)
def test_a_damaged_position_starts_at_the_beginning(position):
    assert LogStream.at(position) == LogStream()


def test_lines_that_were_shown_before_are_passed_over_in_whatever_pieces_they_come():
    stream = LogStream.at({"allocation_id": "a", "offset": 4, "lines": 1})
    stream.was_shown(3)
    assert stream.feed("two\nthr", 11, False) == []
    assert stream.feed("ee\nfour\nfive", 23, False) == ["four"]
    assert stream.position() == {"allocation_id": "a", "offset": 19, "lines": 4}
    assert stream.flush() == ["five"]


def test_another_kind_of_reader_counts_from_where_it_begins():
    stream = LogStream("a")
    stream.feed("one\ntwo\n", 8, False)
    assert stream.handed_over() == {"allocation_id": "a", "offset": 8, "lines": 0}
