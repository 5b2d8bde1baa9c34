"""Every failure is one sentence for people."""

import httpx
import pytest

from emep.client import EmepApiError, EmepClient, EmepConnectionError, Retry, agent_token
from emep.client.errors import api_error


def response(status: int, **content: object) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "http://host/emep/api/v1/jobs?x=1"), **content)


def test_a_problem_document_becomes_its_detail_with_the_field() -> None:
    error = api_error(
        response(422, json={"title": "Rejected", "detail": "8 is too many", "field": "gpu_count"})
    )
    assert (error.status, error.title, error.field) == (422, "Rejected", "gpu_count")
    assert str(error) == "gpu_count: 8 is too many"


def test_a_field_that_the_detail_names_is_not_said_twice() -> None:
    error = api_error(
        response(422, json={"title": "x", "detail": "gpu_count: 8 is too many", "field": "gpu_count"})
    )
    assert str(error) == "gpu_count: 8 is too many"


def test_validation_errors_of_fastapi_name_the_field() -> None:
    detail = [{"loc": ["body", "gpus", 0, "index"], "msg": "Input should be greater than or equal to 0"}]
    error = api_error(response(422, json={"detail": detail}))
    assert error.field == "gpus.0.index"
    assert str(error) == "gpus.0.index: Input should be greater than or equal to 0"


def test_the_page_of_a_proxy_is_not_shown() -> None:
    error = api_error(response(502, html="<html>Bad gateway</html>"))
    assert str(error) == "http://host/emep/api/v1/jobs answered 502 Bad Gateway"


def test_nobody_there_names_the_url(unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    with (
        EmepClient(url, agent_token("s"), retry=Retry(attempts=1)) as client,
        pytest.raises(EmepConnectionError) as error,
    ):
        client.nodes()
    assert str(error.value) == (
        f"no connection to {url}/emep/api/v1 (connection refused): is the API server running there?"
    )


def test_a_host_that_is_not_known_names_the_url() -> None:
    with (
        EmepClient("http://no-such-host.invalid", agent_token("s"), retry=Retry(attempts=1)) as client,
        pytest.raises(
            EmepConnectionError, match=r"no connection to http://no-such-host\.invalid/emep/api/v1"
        ),
    ):
        client.nodes()


def test_an_answer_of_another_version_is_an_api_error() -> None:
    from emep.client import calls

    with pytest.raises(EmepApiError, match="GET /jobs/x answered something other than a JobView"):
        calls.job("x").read({"id": 3})
