"""Logs by byte offset."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from tests.builders.ledger import Bench, make_settings

from emep.ledger.allocations.logs import LATE_SECONDS, POD_SECONDS
from emep.ledger.store.tables import LogChunk
from emep.wire.errors import ConflictError, NotFoundError


def test_bytes_are_appended_and_read_back(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    log = bench.ledger.logs
    assert log.append(job.allocation_id, 0, b"one\n") == 4
    assert log.append(job.allocation_id, 4, b"two\n") == 8
    assert log.read(job.allocation_id, 0).text == "one\ntwo\n"
    assert log.read(job.allocation_id, 6).text == "o\n"
    assert log.read(job.allocation_id, 8).text == ""
    assert log.read(job.allocation_id, 800).next_offset == 800


def test_what_is_there_already_is_ignored(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.logs.append(job.allocation_id, 0, b"abcdef")
    assert bench.ledger.logs.append(job.allocation_id, 0, b"abc") == 6
    assert bench.ledger.logs.append(job.allocation_id, 3, b"defghi") == 9
    assert bench.ledger.logs.read(job.allocation_id, 0).text == "abcdefghi"


def test_a_gap_is_refused_with_the_offset_to_send_from(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.logs.append(job.allocation_id, 0, b"abc")
    with pytest.raises(ConflictError) as refused:
        bench.ledger.logs.append(job.allocation_id, 7, b"x")
    assert refused.value.extra["expected_offset"] == 3
    with pytest.raises(NotFoundError):
        bench.ledger.logs.append("nosuch-1", 0, b"x")


def test_a_character_cut_in_two_waits_for_its_rest(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    euro = "€".encode()
    bench.ledger.logs.append(job.allocation_id, 0, b"5 " + euro[:2])
    part = bench.ledger.logs.read(job.allocation_id, 0)
    assert (part.text, part.next_offset) == ("5 ", 2)
    bench.ledger.logs.append(job.allocation_id, 4, euro[2:])
    assert bench.ledger.logs.read(job.allocation_id, 2).text == "€"


def test_bytes_that_are_no_text_are_shown_as_such(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.logs.append(job.allocation_id, 0, b"\xff\xfe\x00ok")
    assert bench.ledger.logs.read(job.allocation_id, 0).text.endswith("ok")


def test_a_long_log_is_read_in_parts(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    whole = b"".join(b"line %07d\n" % number for number in range(50_000))
    for start in range(0, len(whole), 100_000):
        bench.ledger.logs.append(job.allocation_id, start, whole[start : start + 100_000])
    text, offset = "", 0
    while True:
        part = bench.ledger.logs.read(job.allocation_id, offset)
        text, offset = text + part.text, part.next_offset
        if not part.text:
            break
    assert text.encode() == whole


def test_it_is_complete_once_its_shipper_says_so_or_a_while_after_the_end(bench: Bench) -> None:
    bench.node()
    closed, silent = bench.running(), bench.running()
    bench.ledger.logs.append(closed.allocation_id, 0, b"x", final=True)
    assert not bench.ledger.logs.read(closed.allocation_id, 0).complete, "it still runs"
    bench.complete(closed)
    bench.complete(silent)
    assert bench.ledger.logs.read(closed.allocation_id, 0).complete
    assert not bench.ledger.logs.read(silent.allocation_id, 0).complete, "its tail may still come"
    bench.clock.advance(6)
    assert bench.ledger.logs.read(silent.allocation_id, 0).complete


def whole(bench: Bench, allocation_id: str) -> str:
    """The log as a reader gets it who begins at its beginning."""
    text, offset = "", 0
    while True:
        part = bench.ledger.logs.read(allocation_id, offset)
        text += part.text
        if part.next_offset == offset:
            return text
        offset = part.next_offset


def pieces(bench: Bench) -> list[int]:
    with bench.database.read() as session:
        return list(session.scalars(select(LogChunk.size).order_by(LogChunk.chunk_offset)))


def test_of_a_long_log_the_newest_bytes_are_kept_and_the_cut_is_said(bench: Bench) -> None:
    bench.ledger.context.settings = make_settings(max_log_bytes=50_000)
    bench.node()
    job = bench.running()
    lines = [f"line {number:05}\n" for number in range(20_000)]
    sent = "".join(lines).encode()
    for start in range(0, len(sent), 10_000):
        bench.ledger.logs.append(job.allocation_id, start, sent[start : start + 10_000])
    assert 50_000 <= sum(pieces(bench)) <= 60_000, "the bound, and at most one piece more"
    shown = whole(bench, job.allocation_id).splitlines(keepends=True)
    kept = shown[1:]
    assert kept == lines[-len(kept) :], "whole lines, the newest ones, up to the last"
    cut = len(sent) - sum(map(len, kept))
    assert shown[0] == f"[{cut} bytes of this log were not kept: a log keeps its newest 50000]\n"
    later = bench.ledger.logs.read(job.allocation_id, len(sent) - 11)
    assert (later.text, later.next_offset) == (lines[-1], len(sent)), "who has read so far is told nothing"


def test_one_piece_longer_than_a_log_may_be(bench: Bench) -> None:
    bench.ledger.context.settings = make_settings(max_log_bytes=10)
    bench.node()
    job = bench.running()
    assert bench.ledger.logs.append(job.allocation_id, 0, b"a" * 30 + b"\n123456789") == 40
    assert whole(bench, job.allocation_id).splitlines()[1:] == ["123456789"]
    assert bench.ledger.logs.append(job.allocation_id, 40, "€€€€".encode()) == 52
    assert whole(bench, job.allocation_id).splitlines()[1:] == ["€€€"]
    bench.complete(job)
    bench.clock.advance(6)
    assert bench.ledger.logs.read(job.allocation_id, 52).complete


def test_a_cut_in_a_line_without_end_leaves_no_half_character(bench: Bench) -> None:
    bench.ledger.context.settings = make_settings(max_log_bytes=8)
    bench.node()
    job = bench.running()
    bench.ledger.logs.append(job.allocation_id, 0, ("€" * 10).encode())
    assert whole(bench, job.allocation_id).splitlines() == [
        "[24 bytes of this log were not kept: a log keeps its newest 8]",
        "€€",
    ]


def test_a_log_of_many_small_pieces_has_few_rows(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    for number in range(300):
        bench.ledger.logs.append(job.allocation_id, number * 100, b"x" * 99 + b"\n")
    assert len(pieces(bench)) <= 8
    assert whole(bench, job.allocation_id) == ("x" * 99 + "\n") * 300


def test_after_the_end_the_rest_is_taken_for_a_while_and_then_nothing(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    log = bench.ledger.logs
    log.append(job.allocation_id, 0, b"begun\n")
    bench.complete(job)
    bench.clock.advance(LATE_SECONDS - 1)
    assert log.append(job.allocation_id, 6, b"its tail\n") == 15
    bench.clock.advance(2)
    with pytest.raises(ConflictError) as refused:
        log.append(job.allocation_id, 15, b"invented\n")
    assert (refused.value.code, refused.value.status) == ("log_closed", 409)
    assert "expected_offset" not in refused.value.extra, "a shipper would send it again"
    assert log.append(job.allocation_id, 6, b"its tail\n", final=True) == 15, "the same again is answered"
    assert whole(bench, job.allocation_id) == "begun\nits tail\n"


def test_what_was_closed_takes_nothing_more_once_it_is_over(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.logs.append(job.allocation_id, 0, b"all\n", final=True)
    bench.complete(job)
    with pytest.raises(ConflictError, match="its log accepts no more"):
        bench.ledger.logs.append(job.allocation_id, 4, b"more\n")


def test_a_lease_that_was_lost_is_over_too(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    bench.ledger.logs.append(job.allocation_id, 0, b"begun\n")
    for _ in range(20):
        bench.clock.advance(5)
        bench.ledger.housekeeping.tick()
    bench.clock.advance(LATE_SECONDS + 1)
    with pytest.raises(ConflictError, match="is lost"):
        bench.ledger.logs.append(job.allocation_id, 6, b"invented\n")


def test_the_log_of_a_pod_is_taken_until_a_triggerer_has_closed_it(bench: Bench) -> None:
    """A triggerer that was down for minutes reads it from the cluster when it is back."""
    bench.node(labels={"emep/runtime": "kubernetes"})
    job = bench.submit(runtime="kubernetes")
    bench.plan()
    job = bench.job(job)
    bench.ledger.leases.fetch(job.allocation_id, started=True)
    bench.beat(job)
    bench.complete(job)
    bench.clock.advance(POD_SECONDS - 1)
    assert bench.ledger.logs.append(job.allocation_id, 0, b"from the cluster\n", final=True) == 17
    with pytest.raises(ConflictError, match="its log accepts no more"):
        bench.ledger.logs.append(job.allocation_id, 17, b"invented\n")
