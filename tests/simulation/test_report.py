from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from tests.builders.scheduling import a_node, a_pool
from tests.builders.simulating import a_spec, simulate

from emep.policy import parse_policy_text
from emep.simulation.report.charts import average_by_bin, ticks
from emep.simulation.report.gantt import gantt
from emep.simulation.report.page import Replay, render
from emep.simulation.report.summary import summarize
from emep.simulation.run.recording import RunSpan

NODES = [a_node(name).gpus(8).nvlink_groups_of(4).build() for name in ("a", "b")]
SPECS = [a_spec("one", 0, 4, 10, project="x"), a_spec("<two>", 1, 8, 30, project="y"), a_spec("3", 2, 16, 5)]


class Page(HTMLParser):
    """Checks that elements nest, and collects what a reader would see and what a browser would fetch."""

    VOID = frozenset({"meta", "path", "rect", "image", "br", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def page_of(*policies: str) -> Page:
    replays = []
    for text in policies:
        policy = parse_policy_text(text)
        recording = simulate(NODES, SPECS, policy)
        replays.append(Replay(text, policy, recording, summarize(recording, policy)))
    page = Page()
    page.feed(render(NODES, replays, "jobs on a <cluster>"))
    assert page.open == []
    return page


def test_the_page_shows_utilization_queue_gantt_and_fair_share() -> None:
    words = " ".join(page_of("reservations: 1").texts)
    for title in ("GPU utilization", "Jobs in the queue", "GPUs by NVLink group", "Fair share"):
        assert title in words
    assert "jobs on a <cluster>" in words


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    page = page_of("reservations: 1")
    assert [one for one in page.references if not one.startswith("data:")] == []
    assert "script" not in page.tags
    assert "link" not in page.tags


def test_every_run_is_a_bar_with_its_job_and_times() -> None:
    words = page_of("reservations: 1").texts
    assert "<two>: 1 to 31 s, 8 GPUs" in words
    assert "one: 0 to 10 s, 4 GPUs" in words


def test_two_policies_stand_side_by_side_with_their_ratio() -> None:
    words = page_of("reservations: 1", "reservations: 0").texts
    assert {"reservations: 1", "reservations: 0", "second over first"} <= set(words)
    assert sum(word.startswith("GPUs by NVLink group under") for word in words) == 2


def test_many_runs_are_drawn_as_how_full_each_group_was() -> None:
    recording = simulate(NODES, SPECS, "{}")
    recording.runs = [RunSpan(0, float(n), n + 1.0, recording.runs[0].gpus) for n in range(6000)]
    drawn = gantt("GPUs", NODES, recording, (0.0, 6000.0))
    assert len(drawn) < 60_000
    assert re.search(r"data:image/png;base64,[A-Za-z0-9+/=]{100,}", drawn)
    assert "4 groups, 6000 runs" in drawn


def test_a_cluster_without_gpus_has_no_gantt() -> None:
    recording = simulate([a_pool(1)], [a_spec("a", 0, 1, 1)])
    assert gantt("GPUs", [a_node("cpu").build()], recording, (0.0, 1.0)) == ""


def test_bins_hold_time_weighted_means() -> None:
    points = average_by_bin([0.0, 5.0, 7.5], [10.0, 0.0, 4.0], 0.0, 10.0, 2)
    assert points == [(2.5, pytest.approx(10.0)), (7.5, pytest.approx(2.0))]


def test_ticks_are_round_and_within() -> None:
    assert ticks(0.0, 100.0, 4) == [0.0, 50.0, 100.0]
    assert ticks(0.0, 0.7, 4) == [0.0, 0.2, 0.4, 0.6]
    assert ticks(3.0, 3.0, 4) == [3.0]
