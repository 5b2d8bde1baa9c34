from __future__ import annotations

from pathlib import Path

import pytest

from emep.simulation.read.cluster import read_cluster
from emep.simulation.read.errors import InputError


def cluster(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        read_cluster(cluster(folder, text))
    return str(caught.value).removeprefix(f"{folder}/")


EXAMPLE = """\
nodes:
  - name: h100
    count: 4
    gpus: 8
    gpu_type: H100
    gpu_memory: 80Gi
    nvlink: node
    rack_size: 2
    block: b0
    labels: {zone: a, fast: true}
    cpu: 96
    memory: 1Ti
    network_bandwidth_gbps: 400
    pool: big
"""


def test_every_field_of_the_documented_example_reaches_the_nodes(tmp_path: Path) -> None:
    nodes = read_cluster(cluster(tmp_path, EXAMPLE))
    assert [node.name for node in nodes] == ["h100-0", "h100-1", "h100-2", "h100-3"]
    first = nodes[0]
    assert (first.pool, first.block, first.cpu, first.memory) == ("big", "b0", 96.0, 1024**4)
    assert first.network_bandwidth_gbps == 400
    assert first.labels == {"zone": "a", "fast": "true"}
    assert [(gpu.index, gpu.gpu_type, gpu.memory) for gpu in first.gpus] == [
        (index, "H100", 80 * 1024**3) for index in range(8)
    ]


def test_rack_size_numbers_racks_by_node(tmp_path: Path) -> None:
    racks = [node.rack for node in read_cluster(cluster(tmp_path, EXAMPLE))]
    assert racks[0] == racks[1] != racks[2] == racks[3]


def test_a_single_node_keeps_its_name(tmp_path: Path) -> None:
    assert [n.name for n in read_cluster(cluster(tmp_path, "nodes: [{name: a, gpus: 1}]"))] == ["a"]


@pytest.mark.parametrize(
    ("nvlink", "sizes"),
    [("node", [8, 8]), ("4", [4, 4, 4, 4]), ("{group: rack}", [16]), ("none", [])],
)
def test_nvlink_groups_are_a_node_a_part_of_it_nodes_or_none(
    tmp_path: Path, nvlink: str, sizes: list[int]
) -> None:
    text = f"nodes: [{{name: n, count: 2, gpus: 8, nvlink: {nvlink}}}]"
    groups = [gpu.nvlink_group for node in read_cluster(cluster(tmp_path, text)) for gpu in node.gpus]
    named = [group for group in groups if group is not None]
    assert [named.count(group) for group in dict.fromkeys(named)] == sizes


def test_gpus_are_one_group_a_node_where_nothing_is_said(tmp_path: Path) -> None:
    (node,) = read_cluster(cluster(tmp_path, "nodes: [{name: n, gpus: 2}]"))
    assert len({gpu.nvlink_group for gpu in node.gpus}) == 1
    assert node.gpus[0].nvlink_group is not None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "nodes:\n  - name: a\n    gpu: 8\n",
            "cluster.yaml:3: nodes[0].gpu: unknown key 'gpu': did you mean 'gpus'?",
        ),
        (
            "nodes:\n  - name: a\n    gpus: eight\n",
            "cluster.yaml:3: nodes[0].gpus: expected a whole number, 0 or more, not 'eight'",
        ),
        (
            "nodes:\n  - name: a\n    gpus: 8\n    gpu_memory: lots\n",
            "cluster.yaml:4: nodes[0].gpu_memory: expected a memory size",
        ),
        (
            "nodes:\n  - name: a\n    gpus: 8\n    nvlink: 3\n",
            "cluster.yaml:4: nodes[0].nvlink: expected a number that divides the 8 GPUs of the node, not 3",
        ),
        ("nodes:\n  - gpus: 8\n", "cluster.yaml:2: nodes[0].name: is missing"),
        ("nodes:\n  - name: 'a:b'\n", "cluster.yaml:2: nodes[0].name: expected a name without"),
        ("nodes:\n  - name: a\n    name: b\n", "cluster.yaml:3: nodes[0].name: is given twice"),
        (
            "nodes:\n  - name: a-1\n  - name: a\n    count: 2\n",
            "cluster.yaml:3: nodes[1].name: node 'a-1' is already",
        ),
        (
            "nodes:\n  - name: a\n    rack: r\n    rack_size: 2\n",
            "cluster.yaml:4: nodes[0].rack_size: is given beside",
        ),
        ("nodes:\n  - 5\n", "cluster.yaml:2: nodes[0]: expected a mapping"),
        ("node: []\n", "cluster.yaml:1: node: unknown key 'node': did you mean 'nodes'?"),
        ("nodes: []\n", "cluster.yaml:1: nodes: expected a list with at least one node"),
        ("nodes: [\n", "cluster.yaml:2: is not YAML"),
        ("nodes: 2026-99-99\n", "cluster.yaml: is not YAML"),
        ("nodes: " + "[" * 5000, "cluster.yaml: is nested too deeply"),
        ("", "cluster.yaml:1: expected a mapping"),
        (
            "nodes:\n  - name: a\n    count: 0\n",
            "cluster.yaml:3: nodes[0].count: expected a whole number, 1 or more",
        ),
        ("nodes:\n  - name: a\n    cpu: .nan\n", "cluster.yaml:3: nodes[0].cpu: expected a finite number"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    assert refusal(tmp_path, text).startswith(sentence)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot be read"):
        read_cluster(tmp_path / "nowhere.yaml")
