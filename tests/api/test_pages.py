"""The page of a job, and what explains many jobs at once."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest

from .conftest import Api

HTML = {"Accept": "text/html,application/xhtml+xml"}
EVIL = "<script>alert(1)</script>'\"&"


class Tags(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data + " "

    def links(self) -> list[str]:
        return [str(attrs.get("href")) for tag, attrs in self.tags if tag == "a"]


def page(api: Api, job_id: str, who: str | None = "viewer", **options: Any) -> Any:
    return api.call(who, "GET", f"/emep/jobs/{job_id}", headers=HTML, **options)


def finish(api: Api, order: dict[str, Any], path: str, result: dict[str, Any]) -> None:
    token = order["lease_token"]
    api.call(token, "POST", f"{path}/heartbeat", json={"epoch": order["epoch"]})
    body = {"epoch": order["epoch"], "exit_code": 0, "result": result}
    assert api.call(token, "POST", f"{path}/complete", json=body).status_code == 200


def test_a_waiting_job_s_page_says_place_reason_start_and_holders(api: Api) -> None:
    api.node(gpus=4)
    holder, _, _ = api.granted(gpu_count=3, max_duration="1h")
    waiting = api.submit(gpu_count=2).json()["id"]
    answer = page(api, waiting)
    assert answer.status_code == 200
    shown = Tags(answer.text)
    for words in ("pending", "number 1 in the queue", "needs 2 GPUs, 1 free", "1 of 1", "Who holds the GPUs"):
        assert words in shown.words, words
    assert f"/emep/jobs/{holder['job_id']}" in shown.links()
    assert f"/emep/api/v1/jobs/{waiting}/logs" in shown.links()
    assert ("main", {"data-refresh": "10"}) in shown.tags
    assert answer.headers["cache-control"] == "no-store"
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_an_ended_job_s_page_has_its_result_as_a_table_and_what_happened(api: Api) -> None:
    api.node(gpus=4)
    order, path, _ = api.granted(gpu_count=1)
    metrics = {"arc": {"n": 4, "acc": 0.5, "acc_stderr": 0.25}, "warnings": ["few items"]}
    outputs = {"results": {"uri": "file:///runs/results.json", "bytes": 2048}}
    finish(api, order, path, {"status": "done", "metrics": metrics, "outputs": outputs})
    shown = Tags(page(api, order["job_id"]).text)
    for words in ("completed", "0.500 ± 0.250", "file:///runs/results.json (2Ki)", "Warning: few items"):
        assert words in shown.words, words
    for event in ("submitted", "granted", "started", "completed"):
        assert f" {event} " in shown.words, event
    assert ("main", {"data-refresh": "0"}) in shown.tags


def test_what_users_write_is_text_on_the_page_and_never_markup(api: Api) -> None:
    api.node(gpus=4)
    order, path, _ = api.granted(
        gpu_count=1, user="alice", project="team", trace_id=EVIL, experiment_id=EVIL, job_type=EVIL
    )
    metrics = {EVIL: {"acc": 1, "combined": {"acc": 1}}, "method": EVIL, "warnings": [EVIL]}
    outputs = {EVIL: {"uri": f"javascript:{EVIL}", "bytes": 1}}
    finish(api, order, path, {"status": "done", "metrics": metrics, "outputs": outputs, "more": EVIL})
    api.submit(gpu_count=4, trace_id=EVIL, job_type=EVIL)
    for job in api.call("viewer", "GET", "/jobs").json()["items"]:
        answer = page(api, job["id"])
        shown = Tags(answer.text)
        scripts = [attrs for tag, attrs in shown.tags if tag == "script"]
        assert scripts == [{"src": "/emep/static/job.js", "defer": None}]
        assert "alert(1)" in shown.words
        assert not [name for _, attrs in shown.tags for name in attrs if name.startswith("on")]
        assert not [target for target in shown.links() if not target.startswith("/emep/")]


def test_the_script_alone_needs_no_login_and_holds_no_data(api: Api) -> None:
    answer = api.client.get("/emep/static/job.js")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "innerHTML =" not in answer.text
    for path in ("/emep/static/", "/emep/static/other.js", "/emep/static/../auth.py"):
        assert api.client.get(path).status_code in (401, 404), path


@pytest.mark.parametrize(
    ("who", "job_id", "status", "words"),
    [
        (None, "j1", 401, "You are not logged in"),
        ("viewer", "no-such-job", 404, "There is no job 'no-such-job'."),
        ("agent", "j1", 403, "This route is for people and programs with Airflow's tokens, not for agent."),
    ],
)
def test_a_browser_gets_a_sentence_where_it_may_not_or_there_is_nothing(
    api: Api, who: str | None, job_id: str, status: int, words: str
) -> None:
    answer = page(api, job_id, who)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert words in " ".join(Tags(answer.text).words.split())


def test_who_is_not_logged_in_is_led_back_after_the_login(api: Api) -> None:
    links = Tags(page(api, "j1", None).text).links()
    assert links == ["/api/v2/auth/login?next=/emep/jobs/j1"]


def test_a_program_gets_problem_details_as_ever(api: Api) -> None:
    answer = api.call("viewer", "GET", "/emep/jobs/no-such-job")
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_session_s_cookie_opens_the_page(api: Api) -> None:
    api.node(gpus=4)
    order, _, _ = api.granted(gpu_count=1)
    cookies = {"Cookie": f"_token={api.token('viewer')}"}
    answer = api.client.get(f"/emep/jobs/{order['job_id']}", headers={**HTML, **cookies})
    assert answer.status_code == 200
    assert "Runs on" in answer.text


def test_several_jobs_are_explained_at_once_with_who_holds_the_gpus(api: Api) -> None:
    api.node(gpus=4)
    order, _, _ = api.granted(gpu_count=3, max_duration="1h", project="org/team")
    first, second = (api.submit(gpu_count=2).json()["id"] for _ in range(2))
    answer = api.call("viewer", "GET", f"/jobs:explain?ids={first},{second},{order['job_id']},nothing")
    told = {one["job_id"]: one for one in answer.json()["items"]}
    assert set(told) == {first, second, order["job_id"]}
    assert [(told[name]["position"], told[name]["waiting"]) for name in (first, second)] == [(1, 2), (2, 2)]
    (holder,) = told[second]["holders"]
    assert (holder["job_id"], holder["project"], holder["gpu_count"]) == (order["job_id"], "org/team", 3)
    assert (holder["nodes"], holder["yielding"]) == (["n0"], False)
    assert holder["until"] is not None
    assert told[second]["holder_count"] == 1
    assert told[order["job_id"]]["holders"] == []


@pytest.mark.parametrize(
    ("fields", "holders"),
    [
        ({}, [0, 1]),
        ({"gpu_type": "A100"}, [1]),
        ({"gpu_memory_min": "80Gi"}, [0, 1]),
        ({"gpu_count": 0, "cpu": 15}, []),
    ],
)
def test_only_gpus_that_the_job_could_use_have_holders(
    api: Api, fields: dict[str, Any], holders: list[int]
) -> None:
    for name, kind in (("n0", "H100"), ("n1", "A100")):
        gpus = [
            {"index": index, "uuid": f"{name}-{index}", "gpu_type": kind, "gpu_memory": "80Gi"}
            for index in range(4)
        ]
        node = {"name": name, "cpu": 16, "memory": "64Gi", "gpus": gpus}
        assert api.call("agent", "POST", "/nodes", json=node).status_code < 300
    held = []
    for name, kind in (("n0", "H100"), ("n1", "A100")):
        held.append(api.submit(gpu_count=4, gpu_type=kind, cpu=2).json()["id"])
        assert api.call("agent", "POST", f"/nodes/{name}/poll", json={"timeout": 30}).json()["orders"]
    waiting = api.submit(**{"gpu_count": 3, **fields}).json()["id"]
    told = api.call("viewer", "GET", f"/jobs/{waiting}/explain").json()
    assert told["position"] is not None
    assert {one["job_id"] for one in told["holders"]} == {held[index] for index in holders}


def test_the_events_of_a_job_are_listed_newest_first(api: Api) -> None:
    api.node(gpus=4)
    order, _, _ = api.granted(gpu_count=1)
    events = api.call("viewer", "GET", f"/jobs/{order['job_id']}/events").json()["items"]
    assert [event["event"] for event in events][-2:] == ["granted", "submitted"]
    assert events[-2]["nodes"] == ["n0"]
    assert json.dumps(events).isprintable()
    assert api.call("viewer", "GET", "/jobs/nothing/events").status_code == 404
