"""The health sensor and its trigger against EMEP's own API over HTTP; the tests play the agent.

Of Airflow's supervisor only its inbox is replaced: what is sent there is kept by the test.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from tests.builders.real_api import real_api

from emep.ledger.nodes.checkup import check_up
from emep.sensors.gpu_health import GpuHealthSensor
from emep.triggers import health
from emep.triggers.health import GpuHealthTrigger
from emep.wire.nodes import GpuHealth, HealthReport

TASK = SimpleNamespace(
    dag_id="emep_gpu_health", run_id="r", task_id="watch", map_index=-1, id="i", try_number=1
)


class Inbox:
    """Airflow's supervisor, as far as a trigger speaks to it."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def send(self, msg: Any) -> Any:
        self.kept[msg.key] = msg.value


@pytest.fixture
def inbox(monkeypatch):
    from airflow.sdk.execution_time import task_runner

    inbox = Inbox()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", inbox, raising=False)
    return inbox


@pytest.fixture
def api(tmp_path, monkeypatch):
    with real_api(tmp_path) as served:
        monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", served.connection("op"))
        monkeypatch.setenv("AIRFLOW_CONN_NOBODY", served.connection("viewer"))
        served.node()
        yield served


def report(api: Any, *bad: int, times: int = 3) -> None:
    gpus = [GpuHealth(index=i, healthy=i not in bad, reason="Xid 79" if i in bad else "") for i in range(4)]
    for _ in range(times):
        api.agent.report_health("n0", HealthReport(gpus=gpus))


def trigger(**fields: Any) -> GpuHealthTrigger:
    now = time.time()
    values = {"conn_id": "emep_default", "since": None, "deferred_at": now, "until": now + 100, "settle": 0.2}
    made = GpuHealthTrigger(**{**values, **fields})
    made.task_instance = TASK
    return made


async def fired(made: GpuHealthTrigger) -> Any:
    async with asyncio.timeout(120):
        async for event in made.run():
            return event
    raise AssertionError("no event")


def context(cursor: Any = None) -> Any:
    ti = SimpleNamespace(xcom_pull=lambda **_: cursor, xcom_push=lambda **_: None, map_index=-1)
    return {"ti": ti}


async def test_a_bad_gpu_ends_the_watch_with_a_batch_and_the_cursor_for_the_next(api, inbox):
    cursor = check_up(api.runtime.ledger.context, None).cursor
    watch = asyncio.create_task(fired(trigger(since=cursor)))
    await asyncio.to_thread(report, api, 2)
    assert isinstance(await watch, TaskSuccessEvent)
    batch = inbox.kept["return_value"]
    (finding,) = batch["findings"]
    assert (finding["event"], finding["nodes"], finding["gpu_index"]) == ("gpu_unhealthy", ["n0"], 2)
    assert "Xid 79" in finding["reason"]
    assert batch["gpus"] == {"default": {"healthy": 3, "unhealthy": 1}}
    assert inbox.kept["cursor"] == batch["cursor"] > cursor


@pytest.mark.parametrize(("drain", "state"), [(True, "drained"), (False, "healthy")])
async def test_a_gpu_that_was_bad_stays_out_only_where_the_run_asks_for_it(api, inbox, drain, state):
    cursor = check_up(api.runtime.ledger.context, None).cursor
    await asyncio.to_thread(report, api, 2)
    await fired(trigger(since=cursor, drain_unhealthy=drain))
    await asyncio.to_thread(report, api, times=3)
    gpus = {gpu.index: gpu.state for gpu in api.runtime.ledger.nodes.views("n0")[0].gpus}
    assert gpus == {0: "healthy", 1: "healthy", 2: state, 3: "healthy"}


async def test_what_was_found_between_two_watches_is_in_the_second(api, inbox):
    await fired(trigger(until=time.time()))
    cursor = inbox.kept["cursor"]
    await asyncio.to_thread(report, api, 0)
    await fired(trigger(since=cursor))
    assert [finding["gpu_index"] for finding in inbox.kept["return_value"]["findings"]] == [0]


async def test_a_quiet_watch_ends_in_success_with_no_finding(api, inbox):
    assert isinstance(await fired(trigger(until=time.time() + 1)), TaskSuccessEvent)
    assert inbox.kept["return_value"]["findings"] == []


async def test_a_user_who_may_not_operate_fails_the_task_with_the_reason(api, inbox, monkeypatch):
    monkeypatch.setattr(health, "EARLIEST_WORKER_LEG", 0.0)
    event = await fired(trigger(conn_id="nobody"))
    assert isinstance(event, TriggerEvent)
    assert "may not change the cluster" in event.payload["error"]
    with pytest.raises(AirflowException, match="may not change the cluster"):
        GpuHealthSensor(task_id="watch").execute_complete(context(), event.payload)


async def test_an_outage_of_the_api_is_waited_out(api, inbox, monkeypatch):
    """The watch starts against a port that nobody serves, and goes on once the connection is right."""
    from emep.client import AsyncEmepClient, EmepConnectionError

    monkeypatch.setattr(health, "RETRY_SECONDS", (0.05, 0.1))
    real, failures = AsyncEmepClient.check_nodes, []

    async def flaky(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(failures) < 3:
            failures.append(1)
            raise EmepConnectionError("nobody answers")
        return await real(self, *args, **kwargs)

    monkeypatch.setattr(AsyncEmepClient, "check_nodes", flaky)
    assert isinstance(await fired(trigger(until=time.time() + 1)), TaskSuccessEvent)
    assert len(failures) == 3


def test_the_trigger_is_made_anew_from_what_it_serializes():
    made = trigger(since=7, drain_unhealthy=True)
    path, arguments = made.serialize()
    assert path == "emep.triggers.health.GpuHealthTrigger"
    assert GpuHealthTrigger(**arguments).serialize() == (path, arguments)


def test_the_sensor_defers_with_the_cursor_of_the_run_before():
    with pytest.raises(TaskDeferred) as deferred:
        GpuHealthSensor(task_id="watch", watch="2m", settle="5s", drain_unhealthy="True").execute(context(41))
    made = deferred.value.trigger
    assert isinstance(made, GpuHealthTrigger)
    assert (made.since, made.settle, made.drain_unhealthy) == (41, 5.0, True)
    assert made.until - made.deferred_at == 120


def test_a_duration_that_is_none_fails_in_one_sentence():
    with pytest.raises(AirflowFailException, match="watch: "):
        GpuHealthSensor(task_id="watch", watch="soon").execute(context())


def test_without_deferral_a_poke_ends_with_the_findings(api):
    sensor = GpuHealthSensor(task_id="watch", deferrable=False)
    assert not sensor.poke(context()).is_done
    report(api, 1)
    answer = sensor.poke(context())
    assert answer.is_done
    assert [finding["gpu_index"] for finding in answer.xcom_value["findings"]] == [1]
