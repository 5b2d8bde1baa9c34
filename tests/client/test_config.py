"""Where the API is and who calls, from the environment, the credentials file and Airflow's connections."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from emep.client import EmepConfigurationError, settings_from_connection, settings_from_environment
from emep.client.config import normal_urls


def bearer(auth: httpx.Auth | None) -> str:
    assert auth is not None
    return next(auth.auth_flow(httpx.Request("GET", "http://x"))).headers["authorization"]


@pytest.mark.parametrize(
    ("given", "api"),
    [
        ("http://h:8080", "http://h:8080/emep/api/v1"),
        ("http://h:8080/", "http://h:8080/emep/api/v1"),
        ("https://h/airflow/emep/api/v1", "https://h/airflow/emep/api/v1"),
    ],
)
def test_the_apis_url_follows_from_airflows(given: str, api: str) -> None:
    assert normal_urls(given) == (api, api.removesuffix("/emep/api/v1"))


@pytest.mark.parametrize(
    "given", ["", "localhost:8080", "ftp://h", "http://", "http://h:port", "http://h/?a=b", "http://u:p@h"]
)
def test_what_is_no_url_is_refused_by_name(given: str) -> None:
    with pytest.raises(EmepConfigurationError, match="EMEP_API_URL"):
        normal_urls(given)


def test_a_token_of_the_environment_wins(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "EMEP_TOKEN": "t", "EMEP_USERNAME": "u", "EMEP_PASSWORD": "p"}
    found = settings_from_environment(env)
    assert found.api_url == "http://localhost:8080/emep/api/v1"
    assert bearer(found.auth) == "Bearer t"


def test_a_user_without_a_password_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(EmepConfigurationError, match="EMEP_PASSWORD is missing"):
        settings_from_environment({"HOME": str(tmp_path), "EMEP_USERNAME": "u"})


def credentials(home: Path, text: str, mode: int = 0o600) -> Path:
    path = home / ".config" / "emep" / "credentials"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_credentials_file_fills_the_gaps(tmp_path: Path) -> None:
    credentials(tmp_path, "# mine\napi_url = http://cluster:8080\ntoken = secret\n")
    found = settings_from_environment({"HOME": str(tmp_path)})
    assert found.api_url == "http://cluster:8080/emep/api/v1"
    assert bearer(found.auth) == "Bearer secret"


def test_the_files_secret_goes_to_the_files_api_only(tmp_path: Path) -> None:
    credentials(tmp_path, "api_url = http://cluster:8080\ntoken = secret\n")
    assert settings_from_environment({"HOME": str(tmp_path), "EMEP_API_URL": "http://elsewhere"}).auth is None


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = credentials(tmp_path, "token = secret\n", mode=0o644)
    with pytest.raises(EmepConfigurationError, match=f"chmod 600 {path}"):
        settings_from_environment({"HOME": str(tmp_path)})


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    credentials(tmp_path, "token = a\nuser = b\n")
    with pytest.raises(EmepConfigurationError, match="credentials, line 2: expected"):
        settings_from_environment({"HOME": str(tmp_path)})


def connection(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(
        **({"host": "h", "port": 8080, "schema": None, "login": "u", "password": "p"} | fields)
    )


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, "http://h:8080"),
        ({"schema": "https", "port": None}, "https://h"),
        ({"host": "https://h/airflow", "port": 8443}, "https://h:8443/airflow"),
        ({"host": "http://h:1", "port": 2}, "http://h:1"),
        ({"host": "http://[::1]", "port": 2}, "http://[::1]:2"),
    ],
)
def test_a_connection_gives_the_url(fields: dict[str, object], url: str) -> None:
    assert settings_from_connection(connection(**fields)).airflow_url == url


@pytest.mark.parametrize(
    "fields", [{"login": None, "password": "emep-agent.s"}, {"password": "emep-agent.s"}]
)
def test_a_connections_password_may_be_a_token(fields: dict[str, object]) -> None:
    assert bearer(settings_from_connection(connection(**fields)).auth) == "Bearer emep-agent.s"


def test_a_connection_without_a_host_is_refused() -> None:
    with pytest.raises(EmepConfigurationError, match="no host"):
        settings_from_connection(connection(host=None))
