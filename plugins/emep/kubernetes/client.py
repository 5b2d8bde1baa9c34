"""A client of the cluster's API over plain JSON, opened from an Airflow connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT = 30.0
"""Seconds that an answer may take."""
CONNECT = 10.0
MERGE_PATCH = "application/merge-patch+json"
EXCLUSIVE = ("in_cluster", "kube_config", "kube_config_path")
"""Fields of a Kubernetes connection of which one at most may be set."""


class KubeError(Exception):
    """The cluster's API refused something; ``status`` as in HTTP."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"Kubernetes answered {status} {reason}: {message}" if reason else message)
        self.status, self.reason, self.message = status, reason, message


class KubeUnreachableError(Exception):
    """The cluster's API did not answer."""


class ConnectionUnusableError(Exception):
    """The connection cannot be used; the message is one sentence that names it."""


@dataclass(frozen=True)
class Cluster:
    """The cluster that the operator's arguments name."""

    conn_id: str | None = "kubernetes_default"
    in_cluster: bool | None = None
    cluster_context: str | None = None
    config_file: str | None = None

    @property
    def words(self) -> str:
        """Its name in sentences."""
        return f"connection {self.conn_id!r}" if self.conn_id else "the Kubernetes configuration"


async def open_client(cluster: Cluster) -> KubeClient:
    """Open a client. Raises ConnectionUnusableError in one sentence that names what is wrong."""
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
    from airflow.providers.cncf.kubernetes.kube_client import _TimeoutAsyncK8sApiClient

    try:
        probe = AsyncKubernetesHook(conn_id=cluster.conn_id)
        extras = {
            name.removeprefix("extra__kubernetes__"): value
            for name, value in (await probe.get_conn_extras()).items()
        }
        chosen = _chosen(cluster, extras)
        config = await asyncio.to_thread(_read_config, cluster.config_file) if cluster.config_file else None
        hook = AsyncKubernetesHook(
            conn_id=cluster.conn_id,
            config_dict=config,
            connection_extras=chosen,
            in_cluster=cluster.in_cluster,
            cluster_context=cluster.cluster_context,
        )
        await hook._load_config()  # type: ignore[no-untyped-call]
        api = _TimeoutAsyncK8sApiClient(configuration=hook.client_configuration)
    except ConnectionUnusableError:
        raise
    except Exception as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConnectionUnusableError(f"{cluster.words} cannot be used for pods: {words}") from error
    # Logs are followed, each over a connection of its own.
    connector: Any = api.rest_client.pool_manager.connector
    connector._limit = 0
    return KubeClient(api, cluster)


def _chosen(cluster: Cluster, extras: Mapping[str, Any]) -> dict[str, Any]:
    """The connection's fields, without those that the operator's own arguments replace."""
    kept = {name: value for name, value in extras.items() if value not in (None, "", False)}
    if cluster.in_cluster or cluster.config_file:
        return {name: value for name, value in kept.items() if name not in EXCLUSIVE}
    path = kept.get("kube_config_path")
    if path and not Path(str(path)).expanduser().is_file():
        raise ConnectionUnusableError(f"{cluster.words} names the file {path}, which is not there")
    both = [name for name in EXCLUSIVE if name in kept]
    if len(both) > 1:
        raise ConnectionUnusableError(
            f"{cluster.words} has {' and '.join(both)}: each of them names a cluster, so keep only one"
        )
    return kept


def _read_config(path: str) -> dict[str, Any]:
    import yaml

    with open(path, encoding="utf-8") as file:
        found = yaml.safe_load(file)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no kubeconfig")
    return found


class KubeClient:
    """Calls of the API. Every one raises KubeError (refused) or KubeUnreachableError."""

    def __init__(self, api: Any, cluster: Cluster) -> None:
        self._api = api
        self.cluster = cluster

    async def aclose(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        """An object, or a list of them."""
        return await self._call("GET", path, query=query)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; KubeError 409 if one of that name exists."""
        return await self._call("POST", path, body=body)

    async def delete(self, path: str, grace: float | None = None, uid: str | None = None) -> None:
        """Delete an object if it exists; with ``uid`` only that one, and not a later one of its name."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            body["gracePeriodSeconds"] = max(0, int(grace))
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", path, body=body)
        except KubeError as error:
            if error.status not in (404, 409):
                raise

    async def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a patch into an object."""
        return await self._call("PATCH", path, body=body, content=MERGE_PATCH)

    @asynccontextmanager
    async def stream(self, path: str, *, silence: float, **query: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream an answer's bytes; ``silence``: seconds without a byte after which it is given up."""
        response = await self._send("GET", path, query=query, patience=(CONNECT, silence))
        try:
            yield _chunks(response)
        finally:
            response.close()

    async def watch(self, path: str, *, seconds: float, **query: Any) -> AsyncIterator[dict[str, Any]]:
        """Events of a list from ``resourceVersion`` on, for so many seconds. KubeError 410: list anew."""
        query = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": int(seconds)}
        rest = b""
        async with self.stream(path, silence=seconds + 15, **query) as chunks:
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event.get("type") == "ERROR":
                        raise _error(event.get("object") or {}, 500)
                    yield event

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        response = await self._send(method, path, query=query, body=body, content=content, patience=TIMEOUT)
        try:
            return dict(json.loads(await response.read()))
        except _connection_errors() as error:
            raise _unreachable(error, self.cluster) from error
        finally:
            response.release()

    async def _send(
        self,
        method: str,
        path: str,
        *,
        patience: float | tuple[float, float],
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> Any:
        parameters = [(key, value) for key, value in (query or {}).items() if value is not None]
        try:
            response = await self._api.call_api(
                path,
                method,
                {},
                parameters,
                {"Accept": "application/json, */*", "Content-Type": content},
                body=None if body is None else dict(body),
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=patience,
            )
            if response.status >= 300:
                text = await response.text()
                response.release()
                raise _error(_json(text), response.status)
        except _connection_errors() as error:
            raise _unreachable(error, self.cluster) from error
        return response


async def _chunks(response: Any) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except _connection_errors() as error:
        raise KubeUnreachableError(f"the stream ended: {type(error).__name__}") from error


def _connection_errors() -> tuple[type[BaseException], ...]:
    import aiohttp

    return (aiohttp.ClientError, OSError, TimeoutError)


def _unreachable(error: BaseException, cluster: Cluster) -> KubeUnreachableError:
    words = str(error) or type(error).__name__
    return KubeUnreachableError(f"{cluster.words}: the cluster's API does not answer ({words})")


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {"message": text.strip()[:500]}
    return found if isinstance(found, dict) else {}


def _error(status: Mapping[str, Any], code: int) -> KubeError:
    return KubeError(
        int(status.get("code") or code), str(status.get("reason") or ""), str(status.get("message") or "")
    )
