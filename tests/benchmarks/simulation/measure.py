"""Figures of the simulator: ``python -m tests.benchmarks.simulation.measure [NAME ..]``.

CPU seconds of one process (set OMP_NUM_THREADS=1), each figure beside the limit it is meant to keep. Nothing
is asserted here: a busy machine would only make a liar of the clock.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.command import run_measures
from tests.benchmarks.simulation.cohorts import Cohorts

from emep.policy import Policy, default_policy, load_preset, parse_policy_text
from emep.simulation.read.cluster import read_cluster
from emep.simulation.read.jobs import read_jobs
from emep.simulation.read.muri import convert_muri, muri_cluster
from emep.simulation.report.outputs import events_jsonl, jobs_csv
from emep.simulation.report.page import Replay, render
from emep.simulation.report.summary import Summary, summarize
from emep.simulation.run.recording import Recording
from emep.simulation.run.replay import replay
from emep.simulation.studies.generate import Churn, churn
from emep.simulation.studies.generate import main as generate

DATA = Path(os.environ.get("EMEP_SHARED_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))


def say(name: str, seconds: float, limit: float | None = None, note: str = "") -> None:
    """One line: the figure, and what part of its limit it is."""
    share = "" if limit is None else f"  {seconds / limit:6.1%} of {limit:g} s"
    print(f"{name:58} {seconds:8.2f} s{share}  {note}".rstrip(), flush=True)


def long_replay() -> None:
    """80,000 jobs on 2,400 GPUs at load 0.9, from files to files."""
    with tempfile.TemporaryDirectory() as folder:
        generate([folder, "--jobs", "80000", "--nodes", "300", "--load", "0.9", "--seed", "1"])
        begin = time.process_time()
        nodes, specs = read_cluster(f"{folder}/cluster.yaml"), read_jobs(f"{folder}/jobs.csv")
        policy = default_policy()
        recording = replay(nodes, specs, policy)
        summary = summarize(recording, policy)
        jobs_csv(recording), events_jsonl(recording)
        render(nodes, [Replay("default", policy, recording, summary)], "80,000 jobs")
        took = time.process_time() - begin
    say("80,000 jobs on 2,400 GPUs, files and report included", took, 60.0, words(recording, summary))


def many_projects() -> None:
    """20 projects of 5 users ask for 1.1 times what there is: queues of hundreds, fair share at work."""
    parameters = Churn(jobs=4_000, gpus=480, load=1.1, projects=20, users_per_project=5)
    specs, policy = churn(parameters, seed=1), default_policy()
    with tempfile.TemporaryDirectory() as folder:
        generate([folder, "--jobs", "1", "--nodes", "60"])
        nodes = read_cluster(f"{folder}/cluster.yaml")
    begin = time.process_time()
    recording = replay(nodes, specs, policy)
    say(
        "4,000 jobs of 100 users on 480 GPUs, load 1.1",
        time.process_time() - begin,
        None,
        words(recording, summarize(recording, policy)),
    )


def cohorts() -> None:
    """The load of Kueue's throughput test."""
    load = Cohorts()
    nodes, specs, policy = load.nodes(), load.jobs(), load.policy()
    begin = time.process_time()
    recording = replay(nodes, specs, policy)
    took = time.process_time() - begin
    note = f"{recording.decisions / took:,.0f} decisions/s, {words(recording, summarize(recording, policy))}"
    say("cohorts: 15,000 jobs of 30 queues", took, 7.5, note)


def published() -> None:
    """The published traces under each kind of backfill and under the preset."""
    policies: list[tuple[str, Policy]] = [
        ("FCFS", parse_policy_text("reservations: 0")),
        ("EASY", parse_policy_text("reservations: 1")),
        ("conservative", parse_policy_text("reservations: all")),
        ("shortest_bounded", load_preset("shortest_bounded")),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for trace in ("trace3.csv", "cluster_trace.csv"):
            Path(folder, "jobs.csv").write_text(convert_muri(DATA / "muri_philly" / trace))
            Path(folder, "cluster.yaml").write_text(muri_cluster(8, 8))
            nodes, specs = read_cluster(f"{folder}/cluster.yaml"), read_jobs(f"{folder}/jobs.csv")
            for name, policy in policies:
                begin = time.process_time()
                recording = replay(nodes, specs, policy)
                took = time.process_time() - begin
                say(f"{trace} under {name}", took, None, words(recording, summarize(recording, policy)))


def words(recording: Recording, summary: Summary) -> str:
    """What a replay came to."""
    return (
        f"{recording.plans:,} plans, makespan {summary['makespan']:,.1f} s,"
        f" mean JCT {summary['mean_jct']:,.0f} s, slowdown {summary['mean_bounded_slowdown']:,.1f},"
        f" longest wait {summary['max_wait']:,.0f} s"
    )


MEASURES = {work.__name__: work for work in (long_replay, many_projects, cohorts, published)}


if __name__ == "__main__":
    raise SystemExit(run_measures(MEASURES, sys.argv[1:]))
