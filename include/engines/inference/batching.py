"""Which sequences go through the model together. Pure arithmetic on lengths."""

from __future__ import annotations

from collections.abc import Sequence


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices in batches of at most ``batch_size``, longest first, equals in their given order.

    Neighbours in length share a batch, so little is padded; the first batch is the largest, so memory that
    does not suffice shows at once and not after an hour.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def rolling_windows(tokens: Sequence[int], prefix: int, size: int) -> list[tuple[list[int], list[int]]]:
    """(input, predicted) windows that predict every token exactly once.

    ``size`` is the longest input the model takes. The first window is led by ``prefix`` (beginning or end of
    sequence). Later ones are led by the last token of the window before, except the last one, which reaches
    as far back as ``size`` allows so that its tokens have a full context.
    """
    if size < 1:
        raise ValueError(f"a window needs at least one token, not {size}")
    if not tokens:
        return []
    first = list(tokens[:size])
    windows = [([prefix, *first[:-1]], first)]
    done = len(first)
    while done < len(tokens):
        count = min(size, len(tokens) - done)
        end = done + count
        windows.append((list(tokens[max(0, end - size - 1) : end - 1]), list(tokens[done:end])))
        done = end
    return windows
