from __future__ import annotations

from pathlib import Path

import pytest

from emep.simulation.read.cluster import read_cluster
from emep.simulation.read.jobs import read_jobs
from emep.simulation.studies import generate
from emep.simulation.studies.generate import STANDARD_MIX, Churn, churn, native_csv


def test_the_load_is_what_was_asked_for() -> None:
    specs = churn(Churn(jobs=40_000, gpus=800, load=0.9), seed=1)
    asked = sum(spec.duration * spec.job.gpu_count for spec in specs)
    assert asked / (800 * specs[-1].job.submit_time) == pytest.approx(0.9, rel=0.03)


def test_demand_is_shared_between_sizes_as_the_mix_says() -> None:
    specs = churn(Churn(jobs=60_000, gpus=800), seed=2)
    asked = {shape.gpus: 0.0 for shape in STANDARD_MIX}
    for spec in specs:
        asked[spec.job.gpu_count] += spec.duration * spec.job.gpu_count
    whole = sum(asked.values())
    for shape in STANDARD_MIX:
        assert asked[shape.gpus] / whole == pytest.approx(shape.demand, abs=0.02)


def test_a_part_of_the_fours_needs_a_group_and_of_the_eights_a_node() -> None:
    specs = churn(Churn(jobs=40_000, gpus=800, constrained=1 / 3), seed=3)
    fours = [spec.job.nvlink_required for spec in specs if spec.job.gpu_count == 4]
    eights = [spec.job.topology_required == "node" for spec in specs if spec.job.gpu_count == 8]
    assert sum(fours) / len(fours) == pytest.approx(1 / 3, abs=0.04)
    assert sum(eights) / len(eights) == pytest.approx(1 / 3, abs=0.04)
    assert not any(spec.job.nvlink_required for spec in specs if spec.job.gpu_count != 4)


def test_a_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    parameters = Churn(jobs=50, gpus=80, projects=3, users_per_project=2)
    assert churn(parameters, 1) == churn(parameters, 1)
    assert churn(parameters, 1) != churn(parameters, 2)


def test_what_is_written_reads_back_as_what_was_made(tmp_path: Path) -> None:
    parameters = Churn(jobs=200, gpus=80, projects=3, users_per_project=2, constrained=0.5)
    (tmp_path / "jobs.csv").write_text(native_csv(churn(parameters, 1)))
    assert read_jobs(tmp_path / "jobs.csv") == churn(parameters, 1)


def test_the_command_writes_a_cluster_and_its_jobs(tmp_path: Path) -> None:
    assert generate.main([str(tmp_path), "--jobs", "20", "--nodes", "3", "--group", "4"]) == 0
    nodes = read_cluster(tmp_path / "cluster.yaml")
    assert [len(node.gpus) for node in nodes] == [8, 8, 8]
    assert len({gpu.nvlink_group for node in nodes for gpu in node.gpus}) == 6
    assert len(read_jobs(tmp_path / "jobs.csv")) == 20
