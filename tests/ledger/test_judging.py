"""What a request comes to before it is written."""

from __future__ import annotations

import pytest

from emep.ledger.jobs.validation import gang_size
from emep.wire.errors import InvalidError
from emep.wire.jobs import JobRequest


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1, None)),
        ({"gpu_count": 0}, (0, None)),
        ({"gpu_count": 8, "node_count": 2}, (8, 2)),
        ({"node_count": 2, "gpu_per_node": 4}, (8, 2)),
        ({"gpu_per_node": 4}, (4, 1)),
        ({"gpu_count": 8, "gpu_per_node": 4}, (8, 2)),
        ({"gpu_count": 8, "node_count": 2, "gpu_per_node": 4}, (8, 2)),
    ],
)
def test_the_gangs_size_comes_from_whatever_is_given(
    fields: dict[str, int], expected: tuple[int, int | None]
) -> None:
    assert gang_size(JobRequest(**fields)) == expected


@pytest.mark.parametrize(
    "fields", [{"gpu_count": 7, "gpu_per_node": 4}, {"gpu_count": 7, "node_count": 2, "gpu_per_node": 4}]
)
def test_numbers_that_contradict_each_other_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidError, match="gpu_count"):
        gang_size(JobRequest(**fields))
