"""The two clients: the same calls, sent with and without ``await``."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from emep.client import calls, operator_calls
from emep.client.calls import ANSWER_MARGIN, Call
from emep.client.config import (
    ClientSettings,
    ConnectionLike,
    settings,
    settings_from_connection,
    settings_from_environment,
)
from emep.client.errors import EmepApiError, api_error, connection_error
from emep.client.retry import Retry

P = ParamSpec("P")
T = TypeVar("T")
CONNECT_TIMEOUT = 5.0


def _sync(build: Callable[P, Call[T]]) -> Callable[Concatenate[EmepClient, P], T]:
    @wraps(build)
    def method(self: EmepClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    return method


def _async(build: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncEmepClient, P], Coroutine[Any, Any, T]]:
    @wraps(build)
    async def method(self: AsyncEmepClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    return method


class _Base:
    """What both clients share: URLs, credentials, retries, how an answer is read."""

    def __init__(
        self, url: str | ClientSettings, auth: httpx.Auth | None = None, *, retry: Retry | None = None
    ) -> None:
        self.settings = settings(url) if isinstance(url, str) else url
        self._auth = auth or self.settings.auth
        self._retry = retry or Retry()
        # Reading the certificates takes longer than most calls, and plain HTTP never uses them.
        self._verify = self.settings.api_url.startswith("https:")

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, *, url: str | None = None, retry: Retry | None = None
    ) -> Self:
        """From ``EMEP_*`` variables and the credentials file; see ``settings_from_environment``."""
        return cls(settings_from_environment(environ, url=url), retry=retry)

    @classmethod
    def from_connection(cls, connection: ConnectionLike, *, retry: Retry | None = None) -> Self:
        """From an Airflow Connection such as ``emep_default``."""
        return cls(settings_from_connection(connection), retry=retry)

    @property
    def api_url(self) -> str:
        """``http://host:port/emep/api/v1``."""
        return self.settings.api_url

    def _request(self, http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
        base = self.settings.airflow_url if call.airflow else self.settings.api_url
        timeout = httpx.Timeout(call.wait + ANSWER_MARGIN, connect=CONNECT_TIMEOUT)
        return http.build_request(call.method, base + call.path, timeout=timeout, **call.request_arguments())

    def _base_url(self, call: Call[Any]) -> str:
        return self.settings.airflow_url if call.airflow else self.settings.api_url

    @staticmethod
    def _document(response: httpx.Response) -> Any:
        """The JSON of a good answer (None for an empty one). Raises EmepApiError for everything else."""
        if response.status_code >= 400:
            raise api_error(response)
        if response.status_code >= 300 or (
            response.content and "json" not in response.headers.get("content-type", "")
        ):
            url = str(response.request.url.copy_with(query=None))
            raise EmepApiError(
                response.status_code, "Not EMEP's API", f"{url} is not EMEP's API: it answered no JSON"
            )
        return response.json() if response.content else None


class EmepClient(_Base):
    """The synchronous client. Close it, or use it in a ``with`` statement.

    ``EmepClient.from_environment()``, ``.from_connection(airflow_connection)``, or
    ``EmepClient(url, auth=agent_token(secret))``. Every method raises EmepApiError (refused) or
    EmepConnectionError (not reached, after the retries).
    """

    def __init__(
        self, url: str | ClientSettings, auth: httpx.Auth | None = None, *, retry: Retry | None = None
    ) -> None:
        super().__init__(url, auth, retry=retry)
        self._http = httpx.Client(verify=self._verify, follow_redirects=False)

    def __enter__(self) -> EmepClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def raw(self, call: Call[Any]) -> Any:
        """Send a call; the answer as JSON."""
        attempt = 0
        while True:
            attempt += 1
            try:
                response = self._http.send(self._request(self._http, call), auth=self._auth)
            except httpx.InvalidURL as error:
                raise connection_error(error, self._base_url(call)) from error
            except httpx.TransportError as error:
                delay = self._retry.delay_after_error(error, attempt, call.repeatable)
                if delay is None:
                    raise connection_error(error, self._base_url(call)) from error
            else:
                delay = self._retry.delay_after_response(response, attempt, call.repeatable)
                if delay is None:
                    return self._document(response)
            time.sleep(delay)

    def send(self, call: Call[T]) -> T:
        """Send a call; the answer as its model."""
        return call.read(self.raw(call))

    submit_job = _sync(calls.submit_job)
    submit_jobs = _sync(calls.submit_jobs)
    job = _sync(calls.job)
    jobs = _sync(calls.jobs)
    changes = _sync(calls.changes)
    explain = _sync(calls.explain)
    explain_jobs = _sync(calls.explain_jobs)
    job_events = _sync(calls.job_events)
    cancel = _sync(calls.cancel)
    requeue = _sync(operator_calls.requeue)
    dead_letters = _sync(operator_calls.dead_letters)
    dead_letter = _sync(operator_calls.dead_letter)
    requeue_dead_letter = _sync(operator_calls.requeue_dead_letter)
    discard_dead_letter = _sync(operator_calls.discard_dead_letter)
    fair_share = _sync(operator_calls.fair_share)
    set_share = _sync(operator_calls.set_share)
    unset_share = _sync(operator_calls.unset_share)
    nodes = _sync(calls.nodes)
    node = _sync(calls.node)
    patch_node = _sync(operator_calls.patch_node)
    drain = _sync(operator_calls.drain)
    resume = _sync(operator_calls.resume)
    register_node = _sync(calls.register_node)
    report_health = _sync(calls.report_health)
    check_nodes = _sync(calls.check_nodes)
    poll = _sync(calls.poll)
    heartbeat = _sync(calls.heartbeat)
    append_logs = _sync(calls.append_logs)
    logs = _sync(calls.logs)
    complete = _sync(calls.complete)
    lease = _sync(calls.lease)
    lost = _sync(calls.lost)
    gone = _sync(calls.gone)
    leaving = _sync(calls.leaving)
    allocation = _sync(calls.allocation)
    readiness = _sync(calls.readiness)
    trigger_dag = _sync(calls.trigger_dag)
    dag = _sync(calls.dag)
    dag_run = _sync(calls.dag_run)
    task_instances = _sync(calls.task_instances)


class AsyncEmepClient(_Base):
    """The asynchronous client: the same methods, awaited. Close it with ``aclose`` or use ``async with``."""

    def __init__(
        self, url: str | ClientSettings, auth: httpx.Auth | None = None, *, retry: Retry | None = None
    ) -> None:
        super().__init__(url, auth, retry=retry)
        self._http = httpx.AsyncClient(verify=self._verify, follow_redirects=False)

    async def __aenter__(self) -> AsyncEmepClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def as_caller(self, auth: httpx.Auth) -> AsyncEmepClient:
        """The same connections with other credentials; only the original client closes them."""
        other = copy.copy(self)
        other._auth = auth
        return other

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def raw(self, call: Call[Any]) -> Any:
        """Send a call; the answer as JSON."""
        attempt = 0
        while True:
            attempt += 1
            try:
                response = await self._http.send(self._request(self._http, call), auth=self._auth)
            except httpx.InvalidURL as error:
                raise connection_error(error, self._base_url(call)) from error
            except httpx.TransportError as error:
                delay = self._retry.delay_after_error(error, attempt, call.repeatable)
                if delay is None:
                    raise connection_error(error, self._base_url(call)) from error
            else:
                delay = self._retry.delay_after_response(response, attempt, call.repeatable)
                if delay is None:
                    return self._document(response)
            await asyncio.sleep(delay)

    async def send(self, call: Call[T]) -> T:
        """Send a call; the answer as its model."""
        return call.read(await self.raw(call))

    submit_job = _async(calls.submit_job)
    submit_jobs = _async(calls.submit_jobs)
    job = _async(calls.job)
    jobs = _async(calls.jobs)
    changes = _async(calls.changes)
    explain = _async(calls.explain)
    explain_jobs = _async(calls.explain_jobs)
    job_events = _async(calls.job_events)
    cancel = _async(calls.cancel)
    requeue = _async(operator_calls.requeue)
    dead_letters = _async(operator_calls.dead_letters)
    dead_letter = _async(operator_calls.dead_letter)
    requeue_dead_letter = _async(operator_calls.requeue_dead_letter)
    discard_dead_letter = _async(operator_calls.discard_dead_letter)
    fair_share = _async(operator_calls.fair_share)
    set_share = _async(operator_calls.set_share)
    unset_share = _async(operator_calls.unset_share)
    nodes = _async(calls.nodes)
    node = _async(calls.node)
    patch_node = _async(operator_calls.patch_node)
    drain = _async(operator_calls.drain)
    resume = _async(operator_calls.resume)
    register_node = _async(calls.register_node)
    report_health = _async(calls.report_health)
    check_nodes = _async(calls.check_nodes)
    poll = _async(calls.poll)
    heartbeat = _async(calls.heartbeat)
    append_logs = _async(calls.append_logs)
    logs = _async(calls.logs)
    complete = _async(calls.complete)
    lease = _async(calls.lease)
    lost = _async(calls.lost)
    gone = _async(calls.gone)
    leaving = _async(calls.leaving)
    allocation = _async(calls.allocation)
    readiness = _async(calls.readiness)
    trigger_dag = _async(calls.trigger_dag)
    dag = _async(calls.dag)
    dag_run = _async(calls.dag_run)
    task_instances = _async(calls.task_instances)
