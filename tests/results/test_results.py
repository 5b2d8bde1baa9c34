"""Results for people: tables, the summary at a log's end, the note of a run."""

from __future__ import annotations

from typing import Any

import pytest

from emep.results.note import MOST, joined, note_of, path_of
from emep.results.summary import summary
from emep.results.tables import as_markdown, as_text, escaped, table_of


def scores(upright: float, turned: float, **more: Any) -> dict[str, Any]:
    values = {"upright": upright, "turned": turned, "combined": (upright + turned) / 2}
    return {name: {"acc": value, "acc_stderr": 0.02} for name, value in values.items()} | more


BOARD = {
    "base": scores(0.66, 0.7),
    "best uniform average": scores(0.7, 0.7, of="uniform 0.1"),
    "evolved": scores(0.8, 0.72),
    "best": "evolved",
    "warnings": [],
}
EVALUATION = {
    "arc": {"n": 40, "acc": 0.5, "acc_stderr": 0.08, "answer_logprob": -1.25, "answer_logprob_stderr": None},
    "texts": {"n": 3, "bits_per_byte": 1.5, "bits_per_byte_stderr": 0.1, "word_perplexity": 12345.678},
    "skills": {"arc": {"n": 40, "acc": 0.5}},
    "combined": {"n": 43, "skills": 2, "acc": 0.5, "acc_stderr": 0.08},
    "comparison": {"verdict": "better", "delta": 0.125, "stderr": 0.01, "n": 40, "warnings": []},
    "warnings": ["40 of 60 items are compared"],
}


def test_a_benchmark_is_a_scoreboard_of_models_and_skills():
    assert as_text(table_of(BOARD)) == [
        "model                                     upright         turned       combined",
        "-------------------------------------------------------------------------------",
        "base                                0.660 ± 0.020  0.700 ± 0.020  0.680 ± 0.020",
        "best uniform average (uniform 0.1)  0.700 ± 0.020  0.700 ± 0.020  0.700 ± 0.020",
        "evolved                             0.800 ± 0.020  0.720 ± 0.020  0.760 ± 0.020",
    ]


def test_an_evaluation_s_log_ends_with_its_table_verdict_files_and_warnings():
    result = {
        "status": "done",
        "seconds": 12.34,
        "peak_memory_bytes": 2 * 1024**3,
        "metrics": EVALUATION,
        "outputs": {"results": {"uri": "file:///runs/results.json", "bytes": 2048, "sha256": "x"}},
    }
    assert summary(result) == [
        "Result: done in 12.3s with at most 2Gi of memory",
        "  task       n            acc  answer_logprob  bits_per_byte  word_perplexity",
        "  ---------------------------------------------------------------------------",
        "  arc       40  0.500 ± 0.080          -1.250",
        "  texts      3                                 1.500 ± 0.100        1.235e+04",
        "  combined  43  0.500 ± 0.080",
        "  against the baseline: better, difference +0.125 ± 0.010 on 40 items",
        "  results: file:///runs/results.json (2Ki)",
        "  warning: 40 of 60 items are compared",
    ]


def test_a_merge_s_log_ends_with_what_it_wrote():
    metrics = {"tensors": 290, "parameters": 7241732096, "output_bytes": 3 * 1024**3, "method": "ties"}
    assert summary({"status": "done", "seconds": 125, "metrics": metrics, "outputs": {}}) == [
        "Result: done in 2m5s",
        "  tensors: 290",
        "  parameters: 7,241,732,096",
        "  output_bytes: 3Gi",
        "  method: ties",
    ]


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        "text",
        {},
        {"return_value": 3},
        {"metrics": None},
        {"metrics": [1], "outputs": [1], "seconds": "x"},
        {"metrics": {"a": {"b": {"c": float("nan")}}, "warnings": {"x": 1}}, "outputs": {"o": None}},
        {"metrics": {"m": {"combined": {}}, "n": {"combined": {"acc": None}}}},
    ],
)
def test_a_result_of_another_form_breaks_nothing(result):
    assert isinstance(summary(result), list)
    assert isinstance(note_of("t", result), str)


def test_the_note_is_a_table_in_markdown():
    note = note_of("scoreboard", {"metrics": BOARD})
    assert note.splitlines()[:5] == [
        "**EMEP**: scoreboard",
        "",
        "|model|upright|turned|combined|",
        "|-|-:|-:|-:|",
        "|base|0.660 ± 0.020|0.700 ± 0.020|0.680 ± 0.020|",
    ]


@pytest.mark.parametrize(
    ("models", "has"), [(3, "±"), (12, "turned"), (25, "combined"), (200, "more, in the task's log")]
)
def test_a_note_is_never_longer_than_airflow_takes(models, has):
    board = {f"model number {index}": scores(0.5, 0.6) for index in range(models)}
    note = note_of("scoreboard", {"metrics": board})
    assert len(note) <= MOST
    assert has in note


@pytest.mark.parametrize("name", ["answer_logprob", "-1.232 ± 0.1", "llama-3.1 8b", "a_b.c"])
def test_ordinary_names_and_numbers_stay_as_they_are(name):
    assert escaped(name) == name


@pytest.mark.parametrize("name", ["_a_", "__a__", "x _a_", "a|b", "*a*", "`a`"])
def test_what_markdown_would_take_for_markup_is_escaped(name):
    assert escaped(name).count("\\") == sum(not (sign.isalnum() or sign == " ") for sign in name)


def test_a_name_adds_no_markup():
    table = table_of({"[x](javascript:alert(1)) <img src=x> |": scores(0.1, 0.2)})
    row = as_markdown(table).splitlines()[-1]
    assert r"\[x\]\(javascript\:alert\(1\)\) \<img src=x\> \|" in row


@pytest.mark.parametrize(
    ("known", "whole"),
    [
        (None, "**EMEP**: b"),
        ("", "**EMEP**: b"),
        ("**EMEP**: a\n\nold", "**EMEP**: b"),
        ("my own words", "my own words\n\n**EMEP**: b"),
        ("my own words\n\n**EMEP**: a", "my own words\n\n**EMEP**: b"),
        ("x" * MOST, None),
    ],
)
def test_a_person_s_note_stays(known, whole):
    assert joined(known, "**EMEP**: b") == whole


def test_a_run_s_id_is_one_part_of_the_path():
    path = path_of({"dag_id": "d", "run_id": "manual__2025-01-01T00:00:00+00:00/x"})
    assert path == "/api/v2/dags/d/dagRuns/manual__2025-01-01T00%3A00%3A00%2B00%3A00%2Fx"
