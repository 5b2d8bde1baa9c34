"""Names and secrets."""

from __future__ import annotations

from emep.ledger.store.ids import JobIds, lease_token, same_secret, token_digest


def test_ids_sort_by_time_and_keep_the_order_within_a_millisecond() -> None:
    ids = JobIds()
    made = [ids.new(now) for now in (1.0, 1.0, 1.0, 1.001, 1.7e9, 1.7e9, 4e9)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {len(name) for name in made} == {16}


def test_two_servers_make_different_ids_at_the_same_moment() -> None:
    assert len({JobIds().new(1.7e9) for _ in range(1000)}) == 1000


def test_a_token_belongs_to_key_allocation_and_epoch() -> None:
    tokens = {
        lease_token(key, allocation, epoch)
        for key in (b"a" * 32, b"b" * 32)
        for allocation in ("j-1", "j-2")
        for epoch in (1, 2)
    }
    assert len(tokens) == 8
    assert lease_token(b"a" * 32, "j-1", 1) in tokens
    assert all(token.startswith("emep-lease.") for token in tokens)
    assert token_digest("x") != token_digest("y")
    assert same_secret("x", "x")
    assert not same_secret("x", "y")
