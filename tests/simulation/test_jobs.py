from __future__ import annotations

from pathlib import Path

import pytest

from emep.policy import default_policy, parse_policy_text
from emep.scheduling.model import LabelTerm
from emep.simulation.read.errors import InputError
from emep.simulation.read.jobs import COLUMNS, read_jobs


def jobs(folder: Path, text: str) -> Path:
    path = folder / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_three_columns_are_enough_and_the_rest_is_default(tmp_path: Path) -> None:
    (spec,) = read_jobs(jobs(tmp_path, "job_id,submit_time,duration\n007,10.5,2h\n"))
    job = spec.job
    assert (job.id, job.submit_time, spec.duration) == ("007", 10.5, 7200.0)
    assert (job.queue, job.project, job.gpu_count, job.topology_preferred) == ("merge", "default", 1, "rack")
    assert job.max_duration is None


def test_every_column_reaches_its_field(tmp_path: Path) -> None:
    values = {
        "job_id": "a",
        "submit_time": "1",
        "duration": "90",
        "queue": "eval",
        "priority": "high",
        "project": "org/team",
        "user": "ann",
        "gpu_count": "8",
        "node_count": "2",
        "gpu_memory_min": "40Gi",
        "gpu_type": "H100",
        "nvlink_required": "true",
        "max_duration": "30m",
        "preemptible": "no",
        "checkpoint_interval": "5m",
        "job_type": "dpo",
        "cpu": "16",
        "memory": "64GiB",
        "topology_required": "rack",
        "topology_preferred": "none",
        "placement": "spread",
        "affinity": "zone=a; disk=fast",
        "anti_affinity": "zone=b",
    }
    assert tuple(values) == COLUMNS
    (spec,) = read_jobs(jobs(tmp_path, f"{','.join(values)}\n{','.join(values.values())}\n"))
    job = spec.job
    assert (job.queue, job.priority, job.project, job.user) == ("eval", "high", "org/team", "ann")
    assert (job.gpu_count, job.node_count, job.gpu_memory_min, job.gpu_type) == (8, 2, 40 * 1024**3, "H100")
    assert (job.nvlink_required, job.max_duration, job.preemptible) == (True, 1800.0, False)
    assert (job.checkpoint_interval, job.job_type, job.cpu, job.memory) == (300.0, "dpo", 16.0, 64 * 1024**3)
    assert (job.topology_required, job.topology_preferred, job.placement) == ("rack", None, "spread")
    assert job.affinity == (LabelTerm("zone", "a"), LabelTerm("disk", "fast"))
    assert job.anti_affinity == (LabelTerm("zone", "b"),)


def test_an_empty_limit_is_the_duration_itself(tmp_path: Path) -> None:
    (spec,) = read_jobs(jobs(tmp_path, "job_id,submit_time,duration\na,0,90\n"))
    assert spec.under(default_policy().for_simulation()).max_duration == 90.0


def test_an_empty_limit_is_the_queues_where_the_policy_file_names_one(tmp_path: Path) -> None:
    (spec,) = read_jobs(jobs(tmp_path, "job_id,submit_time,duration\na,0,90\n"))
    named = parse_policy_text("queues: {merge: {default_max_duration: 6h}}").for_simulation()
    assert spec.under(named).max_duration == 6 * 3600.0


def test_an_empty_priority_is_the_queues_default_class(tmp_path: Path) -> None:
    text = "job_id,submit_time,duration,queue\na,0,90,merge\nb,0,90,artifact\n"
    policy = default_policy().for_simulation()
    assert [spec.under(policy).priority for spec in read_jobs(jobs(tmp_path, text))] == ["normal", "low"]


def test_a_byte_order_mark_empty_lines_and_quoted_cells_are_taken(tmp_path: Path) -> None:
    text = '\ufeffjob_id,submit_time,duration,project\r\n\r\n"a, b",0,1,"x"\r\n'
    (spec,) = read_jobs(jobs(tmp_path, text))
    assert (spec.job.id, spec.job.project) == ("a, b", "x")


HEAD = "job_id,submit_time,duration"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "jobs.csv:1: expected a header line, with at least job_id,submit_time,duration"),
        (f"{HEAD}\n", "jobs.csv: holds no jobs"),
        ("job_id,duration\na,1\n", "jobs.csv:1: submit_time: is missing from the header"),
        (f"{HEAD},gpus\na,0,1,4\n", "jobs.csv:1: gpus: unknown column 'gpus': did you mean"),
        (f"{HEAD},user,user\na,0,1,x,y\n", "jobs.csv:1: user: is in the header twice"),
        (
            f"{HEAD}\na,0,1\nb,soon,1\n",
            "jobs.csv:3: submit_time: expected seconds as a finite number, 0 or more, not 'soon'",
        ),
        (
            f"{HEAD}\na,-1,1\n",
            "jobs.csv:2: submit_time: expected seconds as a finite number, 0 or more, not '-1'",
        ),
        (f"{HEAD}\na,nan,1\n", "jobs.csv:2: submit_time: expected seconds as a finite number"),
        (f"{HEAD}\na,0,\n", "jobs.csv:2: duration: is empty"),
        (f"{HEAD}\na,0,1 parsec\n", "jobs.csv:2: duration: expected a duration"),
        (f"{HEAD}\n,0,1\n", "jobs.csv:2: job_id: is empty"),
        (f"{HEAD}\na,0,1\n\na,0,1\n", "jobs.csv:4: job_id: 'a' is already the job of line 2"),
        (f"{HEAD}\na,0\n", "jobs.csv:2: expected 3 cells as in the header, not 2"),
        (
            f"{HEAD},gpu_count\na,0,1,1.5\n",
            "jobs.csv:2: gpu_count: expected a whole number, 0 or more, not '1.5'",
        ),
        (
            f"{HEAD},node_count\na,0,1,0\n",
            "jobs.csv:2: node_count: expected a whole number, 1 or more, not '0'",
        ),
        (
            f"{HEAD},nvlink_required\na,0,1,maybe\n",
            "jobs.csv:2: nvlink_required: expected true or false, not 'maybe'",
        ),
        (
            f"{HEAD},placement\na,0,1,packed\n",
            "jobs.csv:2: placement: unknown value 'packed': did you mean 'pack'?",
        ),
        (
            f"{HEAD},topology_required\na,0,1,rac\n",
            "jobs.csv:2: topology_required: unknown value 'rac': did you mean 'rack'?",
        ),
        (
            f"{HEAD},affinity\na,0,1,zone\n",
            "jobs.csv:2: affinity: expected label=value;label=value, not 'zone'",
        ),
        (f"{HEAD},gpu_memory_min\na,0,1,80Q\n", "jobs.csv:2: gpu_memory_min: expected a memory size"),
        (f"{HEAD},max_duration\na,0,1,0\n", "jobs.csv:2: max_duration: expected a duration above 0"),
        (f'{HEAD}\n"a,0,1\n', "jobs.csv:2: is not CSV"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_column(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read_jobs(jobs(tmp_path, text))
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(sentence)
