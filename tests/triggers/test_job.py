"""The trigger in a triggerer's place, over HTTP against EMEP's own API; the tests play the agent.

Of Airflow's supervisor only its inbox is replaced: what the trigger sends there is kept by the test.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from tests.builders.inbox import Inbox as KeepingInbox
from tests.builders.jobs import job_view
from tests.builders.ledger import spec_for
from tests.builders.real_api import real_api

from emep.hooks.job_watch import Hub, Subscription
from emep.triggers import job as trigger_module
from emep.triggers.job import POSITION_KEY, JobTrigger
from emep.triggers.waiting import describe
from emep.wire.base import JobState
from emep.wire.jobs import JobRequest

TASK = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, id="i", try_number=1)
RESULT = {"status": "done", "metrics": {"batches": [[0, 1], [2]]}}


class Inbox(KeepingInbox):
    """As every test of triggers has it; of a value the whole message."""

    def value(self, key: str = "return_value") -> Any:
        return next(msg for msg in self.sent if type(msg).__name__ == "SetXCom" and msg.key == key)


@pytest.fixture
def api(tmp_path, monkeypatch):
    with real_api(tmp_path) as served:
        monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", served.connection())
        served.node()
        yield served


@pytest.fixture
def inbox(monkeypatch):
    from airflow.sdk.execution_time import task_runner

    inbox = Inbox()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", inbox, raising=False)
    return inbox


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The pause before a worker's leg has a test of its own; elsewhere nobody waits for it."""
    monkeypatch.setattr(trigger_module, "EARLIEST_WORKER_LEG", 0.0)


def submit(api: Any, **fields: Any) -> str:
    return api.user.submit_job(JobRequest(spec=spec_for(fields), **fields)).id


def trigger_for(job_id: str, **fields: Any) -> JobTrigger:
    trigger = JobTrigger(job_id=job_id, conn_id="emep_default", deferred_at=time.time(), **fields)
    trigger.task_instance = TASK
    return trigger


async def event_of(trigger: JobTrigger) -> Any:
    async with asyncio.timeout(120):
        async for event in trigger.run():
            return event
    raise AssertionError("no event")


async def until(condition: Any) -> None:
    """Let the loop go round until a condition holds that nobody announces."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - the trigger's own state, which has no event
            await asyncio.sleep(0.01)


async def started(trigger: JobTrigger) -> asyncio.Task[Any]:
    """The trigger at work, once it has said something of its job."""
    task = asyncio.create_task(event_of(trigger))
    await until(lambda: trigger._news.sentence)
    return task


async def test_a_success_ends_in_the_trigger_with_the_result_as_xcom(api, inbox):
    job_id = submit(api)
    task = await started(trigger_for(job_id))
    await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
    assert isinstance(await task, TaskSuccessEvent)
    sent = inbox.value()
    assert sent.value == RESULT
    assert (sent.dag_id, sent.run_id, sent.task_id, sent.map_index) == ("d", "r", "t", -1)
    assert sent.mapped_length is None


async def test_a_value_that_is_mapped_over_has_its_length_recorded(api, inbox):
    job_id = submit(api)
    await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
    event = await event_of(trigger_for(job_id, return_field="metrics.batches", mapped=True))
    assert isinstance(event, TaskSuccessEvent)
    assert inbox.value().value == [[0, 1], [2]]
    assert inbox.value().mapped_length == 2


async def test_without_a_wish_for_an_xcom_none_is_pushed(api, inbox):
    job_id = submit(api)
    await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
    assert isinstance(await event_of(trigger_for(job_id, push_result=False)), TaskSuccessEvent)
    assert not [msg for msg in inbox.sent if type(msg).__name__ == "SetXCom"]


async def test_a_success_that_needs_a_worker_gets_one(api, inbox):
    job_id = submit(api)
    await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
    event = await event_of(trigger_for(job_id, worker_end=True))
    assert not isinstance(event, TaskSuccessEvent)
    assert event.payload["job"]["result"] == RESULT


async def test_a_failure_takes_the_worker_s_leg_with_the_job(api, inbox):
    job_id = submit(api)
    await asyncio.to_thread(lambda: api.end(api.order(), 65, {"error": {"message": "bad"}}))
    event = await event_of(trigger_for(job_id))
    assert type(event) is TriggerEvent
    assert event.payload["job"]["state"] == "failed"
    assert event.payload["job"]["exit_code"] == 65


async def test_a_worker_s_leg_comes_no_sooner_than_20_seconds_after_the_deferral(api, inbox, monkeypatch):
    monkeypatch.setattr(trigger_module, "EARLIEST_WORKER_LEG", 20.0)
    slept: list[float] = []

    class Impatient:
        """``asyncio`` as this trigger alone sees it: the server of this process sleeps as ever."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    job_id = submit(api)
    await asyncio.to_thread(lambda: api.end(api.order(), 1))
    trigger = trigger_for(job_id)
    job = await trigger._ended_job()
    trigger.deferred_at = time.time()  # however long the machine has taken so far
    monkeypatch.setattr(trigger_module, "asyncio", Impatient())
    monkeypatch.setattr(trigger, "_ended_job", lambda: _value(job))
    await event_of(trigger)
    (pause,) = slept
    assert 10 < pause <= 20


async def _value(value: Any) -> Any:
    return value


async def test_the_log_is_shown_line_by_line_once(api, inbox, capsys):
    job_id = submit(api)
    task = await started(trigger_for(job_id))
    order = await asyncio.to_thread(api.order)
    holder = await asyncio.to_thread(api.begin, order, "tensor 1 of 2\ntens")
    await asyncio.to_thread(holder.append_logs, order.allocation_id, 18, b"or 2 of 2\nend")
    await asyncio.to_thread(holder.append_logs, order.allocation_id, 31, b"", True)
    await asyncio.to_thread(api.end, order, 0, RESULT)
    await task
    shown = capsys.readouterr().out
    assert shown.count("tensor 1 of 2") == shown.count("tensor 2 of 2") == 1
    assert shown.count("] end ") + shown.count("] end\n") == 1


async def test_it_goes_on_in_the_log_where_the_worker_stopped(api, inbox, capsys):
    job_id = submit(api)
    order = await asyncio.to_thread(api.order)
    holder = await asyncio.to_thread(api.begin, order, "one\ntwo\n")
    await asyncio.to_thread(holder.append_logs, order.allocation_id, 8, b"", True)
    await asyncio.to_thread(api.end, order, 0, RESULT)
    await event_of(trigger_for(job_id, log_position={"allocation_id": order.allocation_id, "offset": 4}))
    shown = capsys.readouterr().out
    assert " one " not in shown
    assert " two " in shown


async def test_a_restarted_triggerer_goes_on_in_the_log_where_the_one_before_was(api, inbox, capsys):
    job_id = submit(api)
    order = await asyncio.to_thread(api.order)
    holder = await asyncio.to_thread(api.begin, order, "one\ntwo\n")
    inbox.kept[POSITION_KEY] = {"allocation_id": order.allocation_id, "offset": 4}
    await asyncio.to_thread(holder.append_logs, order.allocation_id, 8, b"", True)
    await asyncio.to_thread(api.end, order, 0, RESULT)
    trigger = trigger_for(job_id)
    trigger.deferred_at -= 100
    assert isinstance(await event_of(trigger), TaskSuccessEvent)
    shown = capsys.readouterr().out
    assert " one " not in shown
    assert " two " in shown


def shown_before(folder: Path, allocation_id: str, lines: list[str], triggerer: int = 7) -> None:
    """The log file of a triggerer that was killed, as Airflow writes it."""
    place = folder / "dag_id=d" / "run_id=r" / "task_id=t"
    place.mkdir(parents=True, exist_ok=True)
    said = [{"event": "Job x is running", "logger": "airflow.triggers"}]
    said += [{"event": line, "logger": f"emep.job.{allocation_id}"} for line in lines]
    text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in said)
    (place / f"attempt=1.log.trigger.{triggerer}.log").write_text(text)


KEPT = [
    ("nothing was kept, soon after the deferral", None, 0.0),
    ("nothing was kept", None, 100.0),
    ("a position of a minute ago", {"offset": 4, "lines": 1}, 100.0),
    ("a position of this moment", {"offset": 8, "lines": 2}, 100.0),
    ("a position after lines that were never written", {"offset": 14, "lines": 3}, 100.0),
]


@pytest.mark.parametrize(("why", "kept", "ago"), KEPT, ids=[case[0] for case in KEPT])
async def test_after_a_triggerer_was_killed_each_line_is_shown_once(
    api, inbox, capsys, tmp_path, monkeypatch, why, kept, ago
):
    """It had shown two of four lines; where it was is written in its log, whatever position it kept."""
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    monkeypatch.setattr(trigger_module, "EARLIEST_WORKER_LEG", 20.0)
    job_id = submit(api)
    order = await asyncio.to_thread(api.order)
    text = "one\ntwo\nthree\nfour\n"
    holder = await asyncio.to_thread(api.begin, order, text)
    await asyncio.to_thread(holder.append_logs, order.allocation_id, len(text), b"", True)
    await asyncio.to_thread(api.end, order, 0, RESULT)
    shown_before(tmp_path / "logs", order.allocation_id, ["one"], triggerer=6)
    shown_before(tmp_path / "logs", order.allocation_id, ["two"], triggerer=7)
    if kept is not None:
        inbox.kept[POSITION_KEY] = {"allocation_id": order.allocation_id, **kept}
    trigger = trigger_for(job_id)
    trigger.deferred_at -= ago
    assert isinstance(await event_of(trigger), TaskSuccessEvent)
    shown = capsys.readouterr().out
    assert [shown.count(f"] {word} ") for word in ("one", "two", "three", "four")] == [0, 0, 1, 1], why


async def test_lines_of_the_allocation_before_are_not_counted_for_the_next(
    api, inbox, capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    job_id = submit(api)
    order = await asyncio.to_thread(api.order)
    holder = await asyncio.to_thread(api.begin, order, "one\ntwo\n")
    await asyncio.to_thread(holder.append_logs, order.allocation_id, 8, b"", True)
    await asyncio.to_thread(api.end, order, 0, RESULT)
    shown_before(tmp_path / "logs", "another", ["a", "b", "c"])
    inbox.kept[POSITION_KEY] = {"allocation_id": "another", "offset": 6, "lines": 3}
    await event_of(trigger_for(job_id))
    shown = capsys.readouterr().out
    assert [shown.count(f"] {word} ") for word in ("one", "two")] == [1, 1]


async def test_a_stopping_triggerer_keeps_the_position_and_cancels_nothing(api, inbox):
    job_id = submit(api)
    trigger = trigger_for(job_id)
    task = await started(trigger)
    order = await asyncio.to_thread(api.order)
    await asyncio.to_thread(api.begin, order, "one\n")
    await until(lambda: trigger._stream.offset)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await trigger.cleanup()
    kept = {"allocation_id": order.allocation_id, "offset": 4, "lines": 1}
    assert inbox.kept[POSITION_KEY] == kept
    assert (await asyncio.to_thread(api.user.job, job_id)).state == JobState.RUNNING


async def test_a_user_s_kill_cancels_the_job(api, inbox):
    job_id = submit(api)
    trigger = trigger_for(job_id)
    task = await started(trigger)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await trigger.on_kill()
    assert (await asyncio.to_thread(api.user.job, job_id)).state in (JobState.CANCELLED, JobState.YIELDING)


async def test_why_a_job_waits_is_said_when_it_changes(api, inbox, capsys):
    first = submit(api, gpu_count=4)
    second = submit(api, gpu_count=4)
    task = await started(trigger_for(second))
    await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
    await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
    await task
    shown = capsys.readouterr().out
    assert first not in [word for word in shown.split() if word == f"Job {first}"]
    assert f"Job {second} waits" in shown
    assert f"Job {second} is completed" in shown


async def test_a_job_that_the_ledger_does_not_know_fails_the_trigger(api, inbox):
    from emep.client import EmepApiError

    with pytest.raises(EmepApiError):
        await event_of(trigger_for("no-such-job"))


async def test_many_triggers_share_one_watch(api, inbox):
    jobs = [submit(api, gpu_count=0) for _ in range(6)]
    tasks = [await started(trigger_for(job_id)) for job_id in jobs]
    assert await Hub.get("emep_default") is await Hub.get("emep_default")
    watches = [task for task in asyncio.all_tasks() if task.get_name().startswith("emep watch")]
    assert len(watches) == 1
    for _ in jobs:
        await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
    assert all(isinstance(event, TaskSuccessEvent) for event in await asyncio.gather(*tasks))
    # The last one out ends the watch, which closes what it has open.
    await until(lambda: not [t for t in asyncio.all_tasks() if t.get_name().startswith("emep watch")])


async def test_a_trigger_that_comes_after_all_others_have_gone_is_served_too(api, inbox):
    for _ in range(2):
        task = await started(trigger_for(submit(api)))
        await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
        assert isinstance(await task, TaskSuccessEvent)


async def test_a_change_that_the_watch_has_missed_does_not_hold_the_task_for_ever(api, inbox, monkeypatch):
    monkeypatch.setattr(Subscription, "put", lambda self, job: None)
    monkeypatch.setattr(trigger_module, "READ_AGAIN", 0.5)
    task = await started(trigger_for(submit(api)))
    await asyncio.to_thread(lambda: api.end(api.order(), 0, RESULT))
    assert isinstance(await task, TaskSuccessEvent)


async def test_what_was_known_of_a_job_is_read_anew_where_the_ledger_began_anew():
    subscription = Subscription("j")
    subscription.put(job_view())
    subscription.wake()
    assert await subscription.changed(0)
    assert subscription.job is None


def test_a_trigger_survives_its_own_serialization():
    trigger = JobTrigger(job_id="j", conn_id="c", deferred_at=1.0, return_field="metrics.x", mapped=True)
    path, kwargs = trigger.serialize()
    module, _, name = path.rpartition(".")
    assert (module, name) == (JobTrigger.__module__, JobTrigger.__qualname__)
    assert JobTrigger(**kwargs).serialize() == (path, kwargs)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"state": "pending", "reason": "needs 8 GPUs, 5 free"}, "Job job-1 waits: needs 8 GPUs, 5 free"),
        ({"state": "pending", "epoch": 2, "reason": "x"}, "Job job-1 waits (epoch 2): x"),
        ({"state": "running", "nodes": ["n0"]}, "Job job-1 is running on n0"),
        ({"state": "failed", "reason": "time limit"}, "Job job-1 is failed: time limit"),
        ({"state": "completed", "reason": "completed"}, "Job job-1 is completed"),
    ],
)
def test_a_job_is_described_in_one_sentence(fields, sentence):
    assert describe(job_view(**fields)) == sentence
