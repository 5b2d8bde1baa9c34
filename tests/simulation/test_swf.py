from __future__ import annotations

from pathlib import Path

import pytest

from emep.simulation.read.errors import InputError
from emep.simulation.read.swf import read_swf

LOG = """\
; Version: 2.2
; MaxProcs: 64
1 0 10 100 4 -1 -1 4 120 -1 1 7 3 9 1 -1 -1 -1
2 5 -1 50.5 2 -1 -1 -1 -1 -1 1 7 3 -1 1 -1 -1 -1   ; allocated only, no request
3 6 -1 -1 -1 -1 -1 8 60 -1 5 7 3 9 1 -1 -1 -1
"""


def log(folder: Path, text: str) -> Path:
    path = folder / "log.swf"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_processor_is_a_gpu_and_the_requested_time_the_limit(tmp_path: Path) -> None:
    first, second = read_swf(log(tmp_path, LOG)).jobs
    assert (first.job.id, first.job.submit_time, first.duration) == ("1", 0.0, 100.0)
    assert (first.job.gpu_count, first.job.max_duration, first.job.job_type) == (4, 120.0, "program9")
    assert (second.job.gpu_count, second.job.max_duration, second.duration) == (2, None, 50.5)


def test_jobs_that_never_ran_are_left_out_and_counted(tmp_path: Path) -> None:
    assert read_swf(log(tmp_path, LOG)).left_out == 1


def test_all_belong_to_one_entity_unless_asked_for(tmp_path: Path) -> None:
    path = log(tmp_path, LOG)
    assert {(spec.job.project, spec.job.user) for spec in read_swf(path).jobs} == {("default", "")}
    assert {(s.job.project, s.job.user) for s in read_swf(path, entities=True).jobs} == {("group3", "user7")}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 0 10 100 4\n", "log.swf:1: expected 18 numbers, not 5"),
        (
            LOG.replace(" 120 ", " long "),
            "log.swf:3: requested_time: expected a number, -1 where unknown, not 'long'",
        ),
        (
            LOG + "1 9 -1 5 1 -1 -1 1 5 -1 1 7 3 9 1 -1 -1 -1\n",
            "log.swf:6: job_number: 1 is already the job of line 3",
        ),
        (LOG.replace("2 5 ", "2 -5 "), "log.swf:4: submit_time: expected seconds, 0 or more, not -5"),
        ("; nothing\n", "log.swf: holds no job that ran"),
        (
            LOG.replace("1 0 10 100 4", "1 0 10 100 4.5").replace(" 4 120", " -1 120"),
            "log.swf:3: allocated_processors: expected a whole",
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_field(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read_swf(log(tmp_path, text))
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(sentence)
