"""Where the API is and who calls, from the environment, a credentials file, or an Airflow Connection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from emep.client.credentials import AGENT_PREFIX, LEASE_PREFIX, AirflowLogin, BearerToken
from emep.client.errors import EmepConfigurationError

API_PATH = "/emep/api/v1"
DEFAULT_URL = "http://localhost:8080"
_FILE_KEYS = ("api_url", "username", "password", "token")


class ConnectionLike(Protocol):
    """The attributes of ``airflow.sdk.Connection`` that are read here."""

    host: str | None
    port: int | None
    schema: str | None
    login: str | None
    password: str | None


@dataclass(frozen=True)
class ClientSettings:
    """``api_url`` ends in ``/emep/api/v1``; ``airflow_url`` is what stands before it."""

    api_url: str
    airflow_url: str
    auth: httpx.Auth | None


def normal_urls(url: str) -> tuple[str, str]:
    """(API's URL, Airflow's URL) from either of the two.

    Raises EmepConfigurationError for what is not ``http(s)://host[:port][/path]``.
    """
    text = url.strip().rstrip("/")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise EmepConfigurationError(f"EMEP_API_URL: {url!r} is not a URL such as http://localhost:8080")
    if parts.username or parts.password:
        raise EmepConfigurationError(
            "EMEP_API_URL: put no password into the URL, use EMEP_USERNAME and EMEP_PASSWORD"
        )
    airflow = text.removesuffix(API_PATH).rstrip("/")
    return airflow + API_PATH, airflow


def settings(
    url: str, *, username: str | None = None, password: str | None = None, token: str | None = None
) -> ClientSettings:
    """Settings from plain values; a token wins over a name with a password. Raises EmepConfigurationError."""
    api_url, airflow_url = normal_urls(url)
    auth: httpx.Auth | None = None
    if token:
        auth = BearerToken(token)
    elif username:
        if not password:
            raise EmepConfigurationError(f"EMEP_PASSWORD is missing: user {username!r} needs a password")
        auth = AirflowLogin(airflow_url, username, password)
    return ClientSettings(api_url, airflow_url, auth)


def credentials_file(environ: Mapping[str, str]) -> Path:
    """``EMEP_CREDENTIALS``, or ``emep/credentials`` in the user's configuration folder."""
    if chosen := environ.get("EMEP_CREDENTIALS"):
        return Path(chosen).expanduser()
    folder = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(folder) / "emep" / "credentials"


def read_credentials_file(path: Path) -> dict[str, str]:
    """``key = value`` lines (api_url, username, password, token; ``#`` comments); {} where there is no file.

    Raises EmepConfigurationError naming the file and the line, also where others may read the file.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise EmepConfigurationError(f"{path}: cannot be read ({error})") from error
    if mode & 0o077:
        raise EmepConfigurationError(
            f"{path}: others may read this file, which holds a secret: chmod 600 {path}"
        )
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or key.strip() not in _FILE_KEYS:
            raise EmepConfigurationError(
                f"{path}, line {number}: expected `key = value` with a key of {', '.join(_FILE_KEYS)}"
            )
        found[key.strip()] = value.strip()
    return found


def settings_from_environment(
    environ: Mapping[str, str] | None = None, *, url: str | None = None
) -> ClientSettings:
    """From ``EMEP_API_URL`` and ``EMEP_TOKEN`` or ``EMEP_USERNAME``/``EMEP_PASSWORD``; the file fills gaps.

    The file's secrets are only used for the file's own ``api_url``, so that another URL never gets them
    (a file without ``api_url`` serves every URL). Raises EmepConfigurationError.
    """
    env = os.environ if environ is None else environ
    stored = read_credentials_file(credentials_file(env))
    chosen = url or env.get("EMEP_API_URL") or stored.get("api_url") or DEFAULT_URL
    token, username, password = env.get("EMEP_TOKEN"), env.get("EMEP_USERNAME"), env.get("EMEP_PASSWORD")
    same_place = "api_url" not in stored or normal_urls(stored["api_url"]) == normal_urls(chosen)
    if not token and not username and same_place:
        token, username, password = stored.get("token"), stored.get("username"), stored.get("password")
    return settings(chosen, username=username, password=password, token=token)


def settings_from_connection(connection: ConnectionLike) -> ClientSettings:
    """From an Airflow Connection: host, port, schema (http or https), login and password.

    The host may carry the scheme and a path, as Airflow's HTTP connections allow. A password without a login,
    or one with EMEP's prefixes, is a token. Raises EmepConfigurationError naming what is missing.
    """
    host = (connection.host or "").strip()
    if not host:
        raise EmepConfigurationError("the connection has no host: give the API server's, such as localhost")
    if "://" not in host:
        host = f"{connection.schema or 'http'}://{host}"
    parts = urlsplit(host)
    if connection.port and parts.netloc and ":" not in parts.netloc.rpartition("]")[2]:
        parts = parts._replace(netloc=f"{parts.netloc}:{connection.port}")
    secret = connection.password or None
    is_token = bool(secret) and (not connection.login or secret.startswith((AGENT_PREFIX, LEASE_PREFIX)))  # type: ignore[union-attr]
    if is_token:
        return settings(parts.geturl(), token=secret)
    return settings(parts.geturl(), username=connection.login or None, password=secret)
