"""Logs by byte offset."""

from __future__ import annotations

import pytest
from tests.builders.ledger import Bench, make_settings

from emep.exceptions import ConflictError, NotFoundError


def test_bytes_are_appended_and_read_back(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    log = bench.ledger
    assert log.append_log(job.allocation_id, 0, b"one\n") == 4
    assert log.append_log(job.allocation_id, 4, b"two\n") == 8
    assert log.read_log(job.allocation_id, 0).text == "one\ntwo\n"
    assert log.read_log(job.allocation_id, 6).text == "o\n"
    assert log.read_log(job.allocation_id, 8).text == ""
    assert log.read_log(job.allocation_id, 800).next_offset == 800


def test_what_is_there_already_is_ignored(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.append_log(job.allocation_id, 0, b"abcdef")
    assert bench.ledger.append_log(job.allocation_id, 0, b"abc") == 6
    assert bench.ledger.append_log(job.allocation_id, 3, b"defghi") == 9
    assert bench.ledger.read_log(job.allocation_id, 0).text == "abcdefghi"


def test_a_gap_is_refused_with_the_offset_to_send_from(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.append_log(job.allocation_id, 0, b"abc")
    with pytest.raises(ConflictError) as refused:
        bench.ledger.append_log(job.allocation_id, 7, b"x")
    assert refused.value.extra["expected_offset"] == 3
    with pytest.raises(NotFoundError):
        bench.ledger.append_log("nosuch-1", 0, b"x")


def test_a_character_cut_in_two_waits_for_its_rest(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    euro = "€".encode()
    bench.ledger.append_log(job.allocation_id, 0, b"5 " + euro[:2])
    part = bench.ledger.read_log(job.allocation_id, 0)
    assert (part.text, part.next_offset) == ("5 ", 2)
    bench.ledger.append_log(job.allocation_id, 4, euro[2:])
    assert bench.ledger.read_log(job.allocation_id, 2).text == "€"


def test_bytes_that_are_no_text_are_shown_as_such(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.append_log(job.allocation_id, 0, b"\xff\xfe\x00ok")
    assert bench.ledger.read_log(job.allocation_id, 0).text.endswith("ok")


def test_a_long_log_is_read_in_parts(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    whole = b"".join(b"line %07d\n" % number for number in range(50_000))
    for start in range(0, len(whole), 100_000):
        bench.ledger.append_log(job.allocation_id, start, whole[start : start + 100_000])
    text, offset = "", 0
    while True:
        part = bench.ledger.read_log(job.allocation_id, offset)
        text, offset = text + part.text, part.next_offset
        if not part.text:
            break
    assert text.encode() == whole


def test_it_is_complete_once_its_shipper_says_so_or_a_while_after_the_end(bench: Bench) -> None:
    bench.node()
    closed, silent = bench.running(), bench.running()
    bench.ledger.append_log(closed.allocation_id, 0, b"x", final=True)
    assert not bench.ledger.read_log(closed.allocation_id, 0).complete, "it still runs"
    bench.complete(closed)
    bench.complete(silent)
    assert bench.ledger.read_log(closed.allocation_id, 0).complete
    assert not bench.ledger.read_log(silent.allocation_id, 0).complete, "its tail may still come"
    bench.clock.advance(6)
    assert bench.ledger.read_log(silent.allocation_id, 0).complete


def test_past_the_limit_bytes_are_counted_and_the_reader_is_told(bench: Bench) -> None:
    bench.ledger.settings = make_settings(max_log_bytes=10)
    bench.node()
    job = bench.running()
    bench.ledger.append_log(job.allocation_id, 0, b"0123456789")
    assert bench.ledger.append_log(job.allocation_id, 10, b"lost") == 14
    part = bench.ledger.read_log(job.allocation_id, 0)
    assert part.text == "0123456789\n[4 more bytes were not kept]\n"
    assert part.next_offset == 14
    assert bench.ledger.read_log(job.allocation_id, 14).text == ""
