from __future__ import annotations

from tests.builders.scheduling import a_job

from emep.scheduling.history import DurationHistory, kind_of

JOB = a_job("a").of("team", "ann").gpus(4).having(job_type="dpo").build()


def test_nothing_is_guessed_of_what_never_ran() -> None:
    assert DurationHistory().estimate(JOB) is None


def test_the_last_two_runs_count_and_older_ones_do_not() -> None:
    history = DurationHistory()
    for seconds in (1000.0, 10.0, 30.0):
        history.add(kind_of(JOB), seconds)
    assert history.estimate(JOB) == 20.0


def test_another_user_type_or_size_is_another_kind() -> None:
    history = DurationHistory()
    history.add(kind_of(JOB), 10.0)
    others = [
        a_job("b").of("team", "bob").gpus(4).having(job_type="dpo").build(),
        a_job("c").of("team", "ann").gpus(4).having(job_type="sft").build(),
        a_job("d").of("team", "ann").gpus(8).having(job_type="dpo").build(),
    ]
    assert [history.estimate(job) for job in others] == [None, None, None]


def test_an_estimate_is_never_above_the_limit() -> None:
    history = DurationHistory()
    history.add(kind_of(JOB), 500.0)
    assert (
        history.estimate(a_job("a").of("team", "ann").gpus(4).limit(60).having(job_type="dpo").build())
        == 60.0
    )
