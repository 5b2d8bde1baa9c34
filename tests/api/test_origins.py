"""Writes with the session's cookie come from Airflow's own pages; bearer tokens are free of that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emep.api import origins

from .conftest import Api

SPEC = {"engine": "merge", "input": {}, "output_uri": "out"}
HOST = "testserver"


@pytest.fixture
def in_a_browser(api: Api) -> Iterator[Api]:
    """Logged in as alice, as Airflow's UI is."""
    api.client.cookies.set("_token", api.token("alice"))
    yield api
    api.client.cookies.clear()


@pytest.mark.parametrize(
    ("why", "headers"),
    [
        ("another site's page", {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}),
        ("another site's page, by an old browser", {"Origin": "https://evil.example"}),
        ("a neighbour's page", {"Sec-Fetch-Site": "same-site", "Origin": "http://other.testserver"}),
        ("a page on another port", {"Origin": f"http://{HOST}:8081"}),
        ("a page of no origin", {"Origin": "null"}),
        ("a name that only begins the same", {"Origin": f"http://{HOST}.evil.example"}),
        ("a file", {"Origin": "file://"}),
        ("what is no origin at all", {"Origin": f"http://[{HOST}"}),
        ("a link or a typed address", {"Sec-Fetch-Site": "none"}),
        ("no word of where it comes from", {}),
        ("an own origin, but the browser knows better", {"Sec-Fetch-Site": "cross-site", "Origin": f"http://{HOST}"}),
        ("credentials of another scheme", {"Authorization": "Basic YTpi", "Origin": "https://evil.example"}),
    ],
)  # fmt: skip
def test_a_write_with_the_cookie_is_refused_from(
    in_a_browser: Api, why: str, headers: dict[str, str]
) -> None:
    refused = in_a_browser.call(None, "POST", "/jobs", json={"spec": SPEC}, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "foreign_origin"), why
    assert "bearer" in refused.json()["detail"].lower()
    for method, path in (("DELETE", "/jobs/j"), ("PUT", "/fair-share/queue:merge"), ("PATCH", "/nodes/n0")):
        assert in_a_browser.call(None, method, path, headers=headers).json()["code"] == "foreign_origin"
    assert in_a_browser.call(None, "GET", "/jobs", headers=headers).json()["total"] == 0, "reads are free"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://airflow.example", "Host": "internal:8080"},
        {"Origin": f"http://{HOST}"},
        {"Origin": f"https://{HOST}"},
    ],
)
def test_a_write_with_the_cookie_from_its_own_page_is_taken(
    in_a_browser: Api, headers: dict[str, str]
) -> None:
    assert in_a_browser.call(None, "POST", "/jobs", json={"spec": SPEC}, headers=headers).status_code == 201


def test_behind_a_proxy_that_hides_the_host_the_configured_url_counts(
    in_a_browser: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Origin": "https://airflow.example", "Host": "internal:8080"}
    call = {"json": {"spec": SPEC}, "headers": headers}
    assert in_a_browser.call(None, "POST", "/jobs", **call).status_code == 403
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team")
    origins._base_origin.cache_clear()
    try:
        assert in_a_browser.call(None, "POST", "/jobs", **call).status_code == 201
    finally:
        origins._base_origin.cache_clear()


def test_a_token_may_be_sent_from_anywhere(api: Api) -> None:
    headers = {"Origin": "https://dashboard.example", "Sec-Fetch-Site": "cross-site"}
    assert api.call("alice", "POST", "/jobs", json={"spec": SPEC}, headers=headers).status_code == 201
