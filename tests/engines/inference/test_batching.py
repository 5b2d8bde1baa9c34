from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.inference.batching import batches_by_length, rolling_windows


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 9))
def test_every_index_is_in_one_batch_and_the_longest_come_first(lengths: list[int], size: int) -> None:
    batches = batches_by_length(lengths, size)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= size for batch in batches)
    assert [lengths[index] for index in flat] == sorted(lengths, reverse=True)


def test_a_batch_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        batches_by_length([1], 0)


@given(st.integers(0, 70), st.integers(1, 12))
def test_windows_predict_every_token_once_each_from_the_one_before_it(count: int, size: int) -> None:
    tokens = list(range(100, 100 + count))
    windows = rolling_windows(tokens, 7, size)
    assert [token for _, predicted in windows for token in predicted] == tokens
    whole = [7, *tokens]
    for window, predicted in windows:
        assert len(window) <= size
        start = whole.index(predicted[-1])
        assert window == whole[start - len(window) : start]
        assert len(window) >= len(predicted)
        # The last window reaches back as far as the model can look, unless the text itself is shorter.
        assert len(window) == min(size, start)
