from __future__ import annotations

import pytest

from emep.demo.scoreboard import as_text, read_scoreboard


def entry(upright: float, turned: float) -> dict[str, dict[str, float]]:
    scores = {"upright": upright, "turned": turned, "combined": (upright + turned) / 2}
    return {name: {"acc": value, "acc_stderr": 0.02} for name, value in scores.items()}


METRICS = {
    "base": entry(0.66, 0.70),
    "good": entry(0.82, 0.46),
    "start": entry(0.6, 0.6),
    "best uniform average": {**entry(0.66, 0.68), "of": "uniform 0.1"},
    "evolved": entry(0.70, 0.72),
    "best": "evolved",
}


def test_the_opponents_come_before_the_evolved_merge():
    board = read_scoreboard(METRICS)
    assert [row.name for row in board.rows] == ["base", "good", "start", "best uniform average", "evolved"]
    assert board.best_uniform.of == "uniform 0.1"


def test_the_gain_is_the_difference_of_the_combined_scores():
    assert read_scoreboard(METRICS).gain == pytest.approx(0.04)


def test_without_uniform_averages_there_is_no_gain():
    board = read_scoreboard({"base": entry(0.1, 0.2), "evolved": entry(0.3, 0.4)})
    assert board.gain is None


def test_without_the_evolved_merge_there_is_no_scoreboard():
    with pytest.raises(KeyError, match="evolved"):
        read_scoreboard({"base": entry(0.1, 0.2)})


def test_the_table_shows_every_number_with_its_error_and_is_aligned():
    lines = as_text(read_scoreboard(METRICS)).splitlines()
    assert lines[0].split() == ["model", "upright", "turned", "combined"]
    assert "best uniform average (uniform 0.1)" in as_text(read_scoreboard(METRICS))
    assert lines[-1].startswith("evolved merge")
    assert "0.710 ± 0.020" in lines[-1]
    assert len({len(line) for line in lines}) == 1
