from __future__ import annotations

from pathlib import Path

import pytest
from tests.builders.scheduling import a_node, a_pool
from tests.builders.simulating import a_spec, simulate

from emep.simulation.read.errors import InputError
from emep.simulation.report.outputs import check_folder, jobs_csv, write_folder
from emep.simulation.run.recording import number


def test_jobs_csv_says_where_and_how_each_job_ended() -> None:
    nodes = [a_node(name).gpus(2).nvlink_groups_of(2) for name in ("a", "b")]
    specs = [a_spec("one", 0.5, 4, 10), a_spec("late", 1, 1, 2.25), a_spec("never", 2, 5, 1)]
    lines = jobs_csv(simulate(nodes, specs)).splitlines()
    assert lines[0] == "job_id,state,submit_time,start_time,end_time,wait_time,preemptions,nodes,gpus,reason"
    assert lines[1] == "one,completed,0.5,0.5,10.5,0,0,a;b,a:0;a:1;b:0;b:1,"
    assert lines[2] == "late,completed,1,10.5,12.75,9.5,0,a,a:0,"
    assert lines[3].startswith("never,rejected,2,,2,0,0,,,")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "0"), (1e15, "1000000000000000"), (0.1 + 0.2, "0.3"), (2.5e-7, "0"), (12.5, "12.5")],
)
def test_numbers_have_microseconds_at_most_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "jobs.csv").write_text("half")
        assert not (tmp_path / "out").exists()
        raise RuntimeError("out of disk")

    with pytest.raises(RuntimeError):
        write_folder(tmp_path / "out", force=False, fill=fill)
    assert list(tmp_path.iterdir()) == []


def test_a_former_result_survives_a_failed_replacement(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, force=False, fill=lambda folder: (folder / "jobs.csv").write_text("old"))

    def fill(folder: Path) -> None:
        raise RuntimeError("out of disk")

    with pytest.raises(RuntimeError):
        write_folder(out, force=True, fill=fill)
    assert (out / "jobs.csv").read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_an_existing_folder_needs_force_and_is_then_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, force=False, fill=lambda folder: (folder / "events.jsonl").write_text("old"))
    with pytest.raises(InputError, match="exists already"):
        check_folder(out, force=False)
    write_folder(out, force=True, fill=lambda folder: (folder / "jobs.csv").write_text("new"))
    assert sorted(item.name for item in out.iterdir()) == ["emep_simulate.json", "jobs.csv"]


def test_force_replaces_no_file_that_only_has_the_name_of_a_result(tmp_path: Path) -> None:
    """A workload is called ``jobs.csv`` too; a result that was edited is its editor's."""
    out = tmp_path / "mine"
    (out / "compare").mkdir(parents=True)
    (out / "jobs.csv").write_text("my workload")
    with pytest.raises(InputError, match=r"holds 'jobs\.csv', which no simulation wrote"):
        check_folder(out, force=True)
    written = tmp_path / "out"
    write_folder(written, force=False, fill=lambda folder: (folder / "jobs.csv").write_text("old"))
    (written / "compare").mkdir()
    (written / "compare" / "notes.md").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'compare/notes\.md'"):
        check_folder(written, force=True)
    (written / "compare" / "notes.md").unlink()
    check_folder(written, force=True)
    (written / "jobs.csv").write_text("edited")
    with pytest.raises(InputError, match=r"holds 'jobs\.csv'"):
        check_folder(written, force=True)


def test_force_replaces_neither_an_input_nor_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_folder(out, force=False, fill=lambda folder: (folder / "jobs.csv").write_text("old"))
    (tmp_path / "link.csv").symlink_to(out / "jobs.csv")
    with pytest.raises(InputError, match=r"is or holds .*link\.csv, which is in use"):
        check_folder(out, force=True, inputs=[tmp_path / "link.csv"])
    monkeypatch.chdir(out)
    with pytest.raises(InputError, match=r"is or holds .*, which is in use"):
        check_folder(out, force=True)


def test_force_does_not_remove_what_no_simulation_wrote(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"holds 'thesis\.tex'"):
        check_folder(tmp_path, force=True)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        check_folder(tmp_path / "out", force=True)


def test_reasons_with_commas_stay_one_cell() -> None:
    (line,) = jobs_csv(simulate([a_pool(1)], [a_spec('a"b', 0, 1, 1)])).splitlines()[1:]
    assert line.startswith('"a""b",completed')
