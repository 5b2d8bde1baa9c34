"""Groups of GPUs from the pairs that are linked."""

from hypothesis import given
from hypothesis import strategies as st

from emep.agent.topology import connected_groups


def test_a_gpu_without_a_link_is_in_no_group() -> None:
    assert connected_groups(3, []) == [None, None, None]


def test_groups_are_numbered_by_their_lowest_gpu() -> None:
    assert connected_groups(5, [(3, 4), (0, 2)]) == [0, None, 0, 1, 1]


def test_a_ring_is_one_group_though_not_every_pair_is_linked() -> None:
    assert connected_groups(4, [(0, 1), (1, 2), (2, 3), (3, 0)]) == [0, 0, 0, 0]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] != pair[1]), max_size=20
    )
)
def test_linked_gpus_share_a_group_and_reachability_decides(pairs: list[tuple[int, int]]) -> None:
    groups = connected_groups(10, pairs)
    reach = {gpu: {gpu} for gpu in range(10)}
    for _ in range(10):
        for a, b in pairs:
            reach[a] = reach[b] = reach[a] | reach[b]
    for a in range(10):
        assert (groups[a] is None) == (len(reach[a]) == 1)
        for b in range(10):
            if a != b:
                assert (groups[a] is not None and groups[a] == groups[b]) == (b in reach[a])
