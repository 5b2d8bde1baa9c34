"""A token that was valid a moment ago is believed for a moment, and no longer."""

from __future__ import annotations

import pytest

from emep.api.auth import Caller, KnownTokens

CALLER = Caller("user", "alice", None, ("Op",))


def test_a_token_is_known_by_all_of_it_only() -> None:
    known = KnownTokens()
    known.keep("header.body.signature", CALLER)
    assert known.get("header.body.signature") is CALLER
    assert known.get("header.body.signaturf") is None
    assert known.get("header.body") is None


def test_after_its_moment_airflow_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("emep.api.auth.time.monotonic", lambda: now[0])
    known = KnownTokens()
    known.keep("token", CALLER)
    now[0] += KnownTokens.SECONDS - 0.1
    assert known.get("token") is CALLER
    now[0] += 0.2
    assert known.get("token") is None


def test_no_more_are_kept_than_a_server_can_hold() -> None:
    known = KnownTokens()
    for number in range(3 * KnownTokens.MOST):
        known.keep(f"token {number}", CALLER)
    assert len(known._known) <= KnownTokens.MOST
    assert known.get(f"token {3 * KnownTokens.MOST - 1}") is CALLER
