"""``emep simulate`` as a person runs it: files in, folder out, exit status."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import pytest

from emep.cli.commands import simulate

CLUSTER = "nodes:\n  - {name: n, count: 2, gpus: 4}\n"
JOBS = "job_id,submit_time,duration,gpu_count\na,0,100,8\nb,10,50,4\nc,11,50,8\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "jobs.csv").write_text(JOBS)
    return tmp_path


def run(folder: Path, *more: str, jobs: str = "jobs.csv") -> int:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    names = [str(folder / "cluster.yaml"), str(folder / jobs), "--out", str(folder / "out")]
    return simulate.run(parser.parse_args([*names, *more]))


def test_the_folder_holds_the_four_files_their_digests_and_the_table_their_figures(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(files) == 0
    assert sorted(item.name for item in (files / "out").iterdir()) == [
        "emep_simulate.json", "events.jsonl", "jobs.csv", "report.html", "summary.json",
    ]  # fmt: skip
    rows = list(csv.DictReader((files / "out/jobs.csv").read_text().splitlines()))
    assert [(row["job_id"], row["state"], row["start_time"]) for row in rows] == [
        ("a", "completed", "0"), ("b", "completed", "100"), ("c", "completed", "150"),
    ]  # fmt: skip
    assert json.loads((files / "out/summary.json").read_text())["makespan"] == 200
    assert "GPU utilization" in capsys.readouterr().out


def test_the_same_input_gives_the_same_bytes(files: Path) -> None:
    assert run(files) == 0
    before = {item.name: item.read_bytes() for item in (files / "out").iterdir()}
    assert run(files, "--force") == 0
    assert {item.name: item.read_bytes() for item in (files / "out").iterdir()} == before


def test_every_event_is_a_document_in_order_of_time(files: Path) -> None:
    assert run(files) == 0
    events = [json.loads(line) for line in (files / "out/events.jsonl").read_text().splitlines()]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert all(set(event) >= {"time", "event", "job_id", "gpus"} for event in events)
    started = next(event for event in events if event["event"] == "started" and event["job_id"] == "b")
    assert (started["time"], started["gpus"]) == (100, ["n-0:0", "n-0:1", "n-0:2", "n-0:3"])


def test_a_workload_in_the_folder_that_is_to_be_replaced_is_kept(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "out").mkdir()
    (files / "out" / "jobs.csv").write_text(JOBS)
    assert run(files, "--force", jobs="out/jobs.csv") == 2
    assert "out/jobs.csv, which is in use" in capsys.readouterr().err
    assert (files / "out" / "jobs.csv").read_text() == JOBS


def test_an_existing_folder_is_left_alone(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "out").mkdir()
    assert run(files) == 2
    assert "--out: exists already" in capsys.readouterr().err
    assert list((files / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("jobs.csv", "job_id,submit_time,duration\na,0,x\n", "jobs.csv:2: duration: expected a duration"),
        ("cluster.yaml", "nodes:\n  - {name: n, gpu: 4}\n", "cluster.yaml:2: nodes[0].gpu: unknown key"),
        ("policy.yaml", "reservatoins: 1\n", "policy.yaml:1: reservatoins: unknown key"),
        ("failures.csv", "time,target,event\n1,m,down\n", "failures.csv:2: target: no such node 'm'"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_no_folder(
    files: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, sentence: str
) -> None:
    for optional in ("policy.yaml", "failures.csv"):
        (files / optional).write_text("{}" if optional == "policy.yaml" else "time,target,event\n")
    (files / name).write_text(text)
    status = run(files, "--policy", str(files / "policy.yaml"), "--failures", str(files / "failures.csv"))
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert sentence in line
    assert not (files / "out").exists()
    assert not [item for item in files.iterdir() if item.name.startswith(".")]


def test_two_policies_side_by_side(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "shortest.yaml").write_text("order: shortest\nreservations: 0\n")
    assert run(files, "--compare", str(files / "shortest.yaml")) == 0
    summary = json.loads((files / "out/summary.json").read_text())
    assert summary["comparison"]["other"] == "shortest.yaml"
    assert set(summary["comparison"]["differences"]["mean_wait"]) == {"difference", "ratio"}
    assert (files / "out/compare/jobs.csv").exists()
    out = capsys.readouterr().out
    assert "default policy" in out
    assert "shortest.yaml" in out
    assert "under shortest.yaml" in (files / "out/report.html").read_text()


def test_a_workload_log_in_the_standard_format(files: Path) -> None:
    line = "1 0 10 100 4 -1 -1 4 120 -1 1 7 3 9 1 -1 -1 -1\n"
    (files / "log.swf").write_text(f"; a comment\n{line}")
    assert run(files, "--format", "swf", jobs="log.swf") == 0
    assert "1,completed,0,0,100,0,0,n-0" in (files / "out/jobs.csv").read_text()


def test_json_prints_the_summary_and_nothing_else(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((files / "out/summary.json").read_text())


def test_long_replays_tell_how_far_they_are_in_plain_lines(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{number},{number},1,1\n" for number in range(2500))
    (files / "jobs.csv").write_text(f"job_id,submit_time,duration,gpu_count\n{rows}")
    assert run(files) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "default policy: 1000 of 2500 jobs ended", "default policy: 2000 of 2500 jobs ended",
    ]  # fmt: skip


def test_the_table_counts_jobs_that_did_not_complete(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "hard.csv").write_text("job_id,submit_time,duration,gpu_count\na,0,10,1\nb,0,10,999\n")
    assert run(files, jobs="hard.csv") == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["...", "completed", "1"] in shown
    assert ["...", "rejected", "1"] in shown
    assert "<th>... rejected</th><td>1</td>" in (files / "out" / "report.html").read_text()
