from __future__ import annotations

import math
import statistics

import pytest

from engines.evaluation.metrics import by_skill, combined, mean_and_error, summarise
from engines.evaluation.scoring import ItemScore, count_words


def choice(ident: str, logprobs: tuple[float, ...], answer: int, skill: str = "s") -> ItemScore:
    return ItemScore(ident, skill, logprobs, lengths=(1, 4), answer=answer)


def test_accuracy_takes_the_likeliest_choice_and_its_norm_the_likeliest_per_character() -> None:
    # Choice 1 is less likely as a whole (-4 < -2), and more likely per character (-1 > -2).
    metrics = summarise([choice("a", (-2.0, -4.0), 0), choice("b", (-2.0, -4.0), 1)])
    assert metrics["acc"] == 0.5
    assert metrics["acc_norm"] == 0.5
    assert summarise([choice("a", (-2.0, -4.0), 0)] * 2)["acc"] == 1.0
    assert summarise([choice("a", (-2.0, -4.0), 0)] * 2)["acc_norm"] == 0.0


def test_equal_choices_go_to_the_first() -> None:
    assert choice("a", (-2.0, -2.0), 0).picked == 0


def test_the_answer_s_logprob_is_normalised_over_the_choices() -> None:
    assert choice("a", (math.log(0.02), math.log(0.06)), 1).answer_logprob == pytest.approx(math.log(0.75))
    assert choice("a", (-2000.0, -2001.0), 0).answer_logprob == pytest.approx(-math.log(1 + math.exp(-1)))


def test_the_standard_error_is_that_of_the_sample() -> None:
    values = [1.0, 0.0, 1.0, 1.0, 0.0]
    mean, error = mean_and_error(values)
    assert mean == 0.6
    assert error == pytest.approx(statistics.stdev(values) / math.sqrt(5))
    assert mean_and_error([1.0]) == (1.0, None)


def test_combined_counts_skills_equally_and_adds_errors_in_squares() -> None:
    many = [choice(f"m{n}", (-1.0, -9.0), 0 if n % 4 else 1, "many") for n in range(40)]
    few = [choice(f"f{n}", (-1.0, -9.0), n % 2, "few") for n in range(8)]
    skills = by_skill(many + few)
    assert skills["many"]["acc"] == 0.75
    assert skills["few"]["acc"] == 0.5
    found = combined(skills)
    assert found["acc"] == 0.625
    expected = math.hypot(skills["many"]["acc_stderr"], skills["few"]["acc_stderr"]) / 2
    assert found["acc_stderr"] == pytest.approx(expected)
    assert found["n"] == 48


def text(ident: str, logprob: float, size: int) -> ItemScore:
    return ItemScore(ident, "t", (logprob,), tokens=size, words=2, bytes=size)


def test_bits_per_byte_weighs_texts_by_their_bytes() -> None:
    metrics = summarise([text("a", -10 * math.log(2), 10), text("b", -90 * math.log(2), 30)])
    assert metrics["bits_per_byte"] == pytest.approx(100 / 40)
    assert metrics["byte_perplexity"] == pytest.approx(2**2.5)
    assert metrics["word_perplexity"] == pytest.approx(2**25)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("one", 1),
        ("one two", 2),
        (" one", 2),
        ("one\n", 2),
        ("\n one  two\t", 4),
        ("one\u00a0two", 2),
        (" ", 2),
    ],
)
def test_words_are_counted_as_lm_evaluation_harness_does(words: str, count: int) -> None:
    # Its count_words is len(re.split(r"\s+", doc)): white space at an end has an empty part beyond it.
    assert count_words(words) == count


def test_the_error_of_bits_per_byte_matches_a_jackknife() -> None:
    texts = [text(str(n), -math.log(2) * (2.0 + 0.1 * (n % 5)) * (50 + n), 50 + n) for n in range(30)]
    leave_out = [summarise(texts[:n] + texts[n + 1 :])["bits_per_byte"] for n in range(30)]
    mean = statistics.fmean(leave_out)
    jackknife = math.sqrt(29 / 30 * sum((value - mean) ** 2 for value in leave_out))
    assert summarise(texts)["bits_per_byte_stderr"] == pytest.approx(jackknife, rel=0.05)


def test_a_hopeless_model_has_no_word_perplexity_instead_of_infinity() -> None:
    assert summarise([text("a", -5000.0, 10), text("b", -5000.0, 10)])["word_perplexity"] is None


def test_nothing_to_summarise_is_an_error() -> None:
    with pytest.raises(ValueError, match="no items"):
        summarise([])
