"""Published traces: converted, replayed, compared with figures that another engine gave for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emep.policy import load_preset, parse_policy_text
from emep.simulation import convert
from emep.simulation.read.cluster import read_cluster
from emep.simulation.read.errors import InputError
from emep.simulation.read.jobs import read_jobs
from emep.simulation.read.muri import COLUMNS, convert_muri
from emep.simulation.read.openb import convert_openb
from emep.simulation.report.summary import Summary, summarize
from emep.simulation.run.replay import replay

DATA = Path(
    os.environ.get("EMEP_SHARED_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data")
)
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"the published traces are not at {DATA} (EMEP_SHARED_DATA)"
)

HEAD = ",".join(COLUMNS)


def figures(trace: str, policy: str, folder: Path) -> Summary:
    assert convert.main(["muri", str(DATA / "muri_philly" / trace), str(folder)]) == 0
    rules = parse_policy_text(policy) if ":" in policy else load_preset(policy)
    nodes, specs = read_cluster(folder / "cluster.yaml"), read_jobs(folder / "jobs.csv")
    return summarize(replay(nodes, specs, rules), rules)


@needs_data
@pytest.mark.parametrize(("reservations", "mean_jct"), [("0", 991_167), ("1", 421_204), ("all", 416_274)])
def test_mean_completion_times_are_those_of_another_engine(
    tmp_path: Path, reservations: str, mean_jct: float
) -> None:
    found = figures("trace3.csv", f"reservations: {reservations}", tmp_path)
    assert found["mean_jct"] == pytest.approx(mean_jct, rel=0.02)


@needs_data
@pytest.mark.parametrize("trace", ["trace3.csv", "cluster_trace.csv"])
def test_the_preset_halves_slowdown_and_nobody_waits_longer(tmp_path: Path, trace: str) -> None:
    easy = figures(trace, "reservations: 1", tmp_path)
    preset = figures(trace, "shortest_bounded", tmp_path)
    assert preset["mean_bounded_slowdown"] <= 0.5 * easy["mean_bounded_slowdown"]
    assert preset["max_wait"] <= 1.02 * easy["max_wait"]


@needs_data
def test_the_heterogeneous_cluster_keeps_its_types_and_sizes(tmp_path: Path) -> None:
    source = DATA / "openb_fgd" / "openb_node_list_gpu_node.csv"
    assert convert.main(["openb", str(source), str(tmp_path)]) == 0
    nodes = read_cluster(tmp_path / "cluster.yaml")
    assert len(nodes) == 1213
    assert sum(len(node.gpus) for node in nodes) == 6212
    assert len({gpu.gpu_type for node in nodes for gpu in node.gpus}) > 4
    assert (nodes[0].name, nodes[0].cpu, nodes[0].memory) == ("openb-node-0000", 64.0, 256 * 1024**3)


def test_milliseconds_become_seconds_and_the_model_the_job_type(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEAD}\n7,4,1500,10,bert,8,90250,0,1,1,1,1,0\n")
    assert convert_muri(trace) == "job_id,submit_time,duration,gpu_count,job_type\n7,1.5,90.25,4,bert\n"


def test_a_trace_with_a_bad_cell_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"{HEAD}\n7,four,1500,10,bert,8,90250,0,1,1,1,1,0\n")
    assert convert.main(["muri", str(trace), str(tmp_path / "out")]) == 2
    assert "trace.csv:2: num_gpu: expected a whole number, 1 or more, not 'four'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sn,cpu,memory_mib,gpu,model\n")
    with pytest.raises(InputError, match=r"a\.csv:1: cpu: unknown column 'cpu': did you mean 'cpu_milli'"):
        convert_openb(tmp_path / "a.csv")


def test_groups_divide_a_node_or_are_the_node(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\na,8000,1024,8,T4\nb,8000,1024,6,T4\nc,500,64,0,\n"
    )
    (tmp_path / "cluster.yaml").write_text(convert_openb(tmp_path / "a.csv", 4))
    nodes = read_cluster(tmp_path / "cluster.yaml")
    assert [len({gpu.nvlink_group for gpu in node.gpus}) for node in nodes] == [2, 1, 0]
    assert nodes[2].cpu == 0.5
