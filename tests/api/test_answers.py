"""The OpenAPI document names what routes answer.

The client of ``conftest.py`` checks that each answer in these tests is in it, and has the form that it
says; here the document is looked at as a whole.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from tests.builders.conformance import Conformance

from emep.api.app import create_app
from emep.wire.errors import EmepError

from .conftest import Api


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_refusal_is_a_problem_document() -> None:
    document = create_app().openapi()
    Draft202012Validator.check_schema(document["components"]["schemas"]["Problem"])
    found = operations(document)
    assert len(found) > 25
    for method, path, operation in found:
        refusals = {int(status) for status in operation["responses"] if int(status) >= 400}
        assert {401, 403, 422, 500, 503} <= refusals, f"{method} {path}"
        assert (404 in refusals) == ("{" in path), f"{method} {path}"
        reads = "requestBody" in operation
        assert ({400, 408, 413} <= refusals) == reads, f"{method} {path}"
        for status in refusals:
            answer = operation["responses"][str(status)]
            assert list(answer["content"]) == ["application/problem+json"]
            assert answer["description"]


def test_what_depends_on_the_state_is_named_where_it_occurs() -> None:
    document = create_app().openapi()
    conflicts = {(method, path) for method, path, one in operations(document) if "409" in one["responses"]}
    assert ("post", "/api/v1/jobs") in conflicts
    assert ("delete", "/api/v1/jobs/{job_id}") in conflicts
    assert all(method != "get" for method, _ in conflicts)
    bounded = {path for _, path, one in operations(document) if "429" in one["responses"]}
    assert bounded == {
        "/api/v1/jobs",
        "/api/v1/jobs/{job_id}/requeue",
        "/api/v1/dead-letters/{letter_id}/requeue",
    }
    assert {"200", "201"} <= set(document["paths"]["/api/v1/jobs"]["post"]["responses"])


def test_every_kind_of_refusal_has_a_meaning() -> None:
    from emep.api.answers import MEANINGS

    def kinds(error: type[EmepError]) -> set[int]:
        return {error.status}.union(*(kinds(below) for below in error.__subclasses__()))

    assert kinds(EmepError) <= set(MEANINGS)


def test_the_check_finds_an_answer_that_is_not_documented(api: Api) -> None:
    """A check that cannot fail would prove nothing."""
    answer = api.call("alice", "GET", "/jobs/nosuch")
    broken = Conformance(create_app())
    del broken.document["paths"]["/api/v1/jobs/{job_id}"]["get"]["responses"]["404"]
    with pytest.raises(AssertionError, match="answers 404, which is not documented"):
        broken.check("GET", "/api/v1/jobs/nosuch", answer)
    answer = api.call("alice", "GET", "/jobs")
    schemas = broken.document["components"]["schemas"]
    schemas["Page"]["properties"]["total"] = {"type": "string"}
    with pytest.raises(AssertionError, match="total"):
        broken.check("GET", "/api/v1/jobs", answer)


def test_routes_are_described_but_for_pages_and_what_stands_outside_the_version() -> None:
    outside = [
        route.path
        for route in create_app().routes
        if isinstance(route, APIRoute) and not route.include_in_schema
    ]
    assert sorted(outside) == ["/docs", "/health", "/jobs/{job_id}", "/openapi.json", "/static/job.js"]
