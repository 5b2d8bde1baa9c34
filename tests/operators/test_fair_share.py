"""The operator in a worker's place, over HTTP against EMEP's own API; the tests play the agent."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from sqlalchemy import text
from tests.builders.real_api import real_api

from emep.ledger.store.tables import Job
from emep.operators import outage
from emep.operators.earlier_tries import cancel_jobs
from emep.operators.fair_share import FairShareGpuOperator
from emep.triggers.job import POSITION_KEY
from emep.wire.base import JobState


@pytest.fixture
def api(tmp_path, monkeypatch):
    with real_api(tmp_path) as served:
        monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", served.connection())
        served.node()
        yield served


RUN_STARTED = datetime(2024, 1, 1, tzinfo=UTC)


def context(
    try_number: int = 1, max_tries: int = 3, map_index: int = -1, user: str | None = "alice"
) -> dict[str, Any]:
    ti = SimpleNamespace(
        dag_id="emep_merge",
        run_id="run 1",
        task_id="merge",
        map_index=map_index,
        try_number=try_number,
        max_tries=max_tries,
    )
    run = SimpleNamespace(run_id="run 1", triggering_user_name=user, start_date=RUN_STARTED)
    return {"ti": ti, "dag_run": run}


def operator(**fields: Any) -> FairShareGpuOperator:
    fields = {
        "task_id": "merge",
        "engine": "merge",
        "input": {"recipe": "r"},
        "output_uri": "o",
        **fields,
    }
    with DAG("emep_merge", schedule=None):
        return FairShareGpuOperator(**fields)


def airflow_says(api: Any, state: str | None) -> None:
    """What Airflow's own table, in the ledger's database, says of the task."""
    columns = "dag_id TEXT, run_id TEXT, task_id TEXT, map_index INTEGER, try_number INTEGER, state TEXT"
    with api.runtime.ledger.context.database.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE task_instance ({columns})"))
        connection.execute(
            text("INSERT INTO task_instance VALUES ('emep_merge', 'run 1', 'merge', -1, 1, :state)"),
            {"state": state},
        )


def in_background(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_short_job_ends_inline_and_its_log_is_in_the_task_s(api, capsys):
    agent = in_background(
        lambda: api.end(api.order(), 0, {"status": "done", "metrics": {"n": 1}}, "reading\nwriting\n")
    )
    assert operator(inline_wait=120).execute(context()) == {"status": "done", "metrics": {"n": 1}}
    agent.join()
    shown = capsys.readouterr().out
    for line in ("reading", "writing", "is completed"):
        assert shown.count(line) == 1, line


def test_a_part_of_the_result_is_returned(api):
    agent = in_background(lambda: api.end(api.order(), 0, {"metrics": {"batches": [[0], [1]]}}))
    assert operator(inline_wait=120, return_field="metrics.batches").execute(context()) == [[0], [1]]
    agent.join()


def test_a_long_job_is_deferred_once_with_all_that_the_trigger_needs(api):
    with pytest.raises(TaskDeferred) as caught:
        operator(inline_wait=0, return_field="metrics.x").execute(context())
    assert caught.value.method_name == "execute_complete"
    assert caught.value.timeout is None
    path, kwargs = caught.value.trigger.serialize()
    assert path == "emep.triggers.job.JobTrigger"
    assert kwargs["return_field"] == "metrics.x"
    assert kwargs["conn_id"] == "emep_default"
    assert api.user.job(kwargs["job_id"]).state in (JobState.PENDING, JobState.STARTING)


def test_the_request_says_who_asks_and_for_what(api):
    with pytest.raises(TaskDeferred) as caught:
        operator(
            engine="evolve_candidates",
            inline_wait=0,
            job_queue="eval",
            priority="high",
            project="org/team",
            gpu_count="2",
            nvlink_required="True",
            max_duration="2h",
            seed="7",
            extra_input={"candidates": [1]},
        ).execute(context(map_index=3, try_number=2))
    job = api.user.job(caught.value.trigger.job_id)
    assert (job.queue, job.priority, job.project, job.user) == ("eval", "high", "org/team", "alice")
    assert (job.gpu_count, job.nvlink_required, job.job_type) == (2, True, "evolve_candidates")
    assert (job.airflow.dag_id, job.airflow.run_id, job.airflow.map_index) == ("emep_merge", "run 1", 3)
    assert (job.airflow.try_number, job.airflow.last_try) == (2, False)
    order = api.order()
    assert order.spec["seed"] == 7
    assert order.spec["input"] == {"recipe": "r", "candidates": [1]}


def test_empty_fields_are_the_policy_s_defaults(api):
    request = operator(gpu_memory_min="", gpu_type="None", max_duration=None, experiment_id="").request(
        context()
    )
    assert request.gpu_type is None
    assert request.gpu_memory_min == 0
    assert request.max_duration is None
    assert request.experiment_id == "run 1"


@pytest.mark.parametrize(
    ("engine", "interval"),
    [
        ("merge", 30.0),
        ("evaluate", 30.0),
        ("benchmark", 30.0),
        ("evolve_candidates", 30.0),
        ("evolve_ask", None),
        ("evolve_tell", None),
        ("compare", None),
        ("compatibility_check", None),
    ],
)
def test_engines_that_save_by_themselves_say_how_often(engine, interval):
    assert operator(engine=engine).request(context()).checkpoint_interval == interval
    assert operator(engine=engine, checkpoint_interval="5m").request(context()).checkpoint_interval == 300.0


@pytest.mark.parametrize(
    ("asked", "required"),
    [
        (None, "node"),
        ({"preferred": "rack"}, "node"),
        ({"required": "rack"}, "node"),
        ({"required": "nvlink"}, "nvlink"),
    ],
)
def test_an_engine_s_gpus_are_those_of_one_node(asked, required):
    assert operator(topology=asked).request(context()).topology.required == required


def test_the_key_holds_the_try_and_the_checkpoint_key_does_not():
    first, second = operator().request(context(1)), operator().request(context(2))
    assert first.idempotency_key != second.idempotency_key
    assert first.checkpoint_key == second.checkpoint_key
    assert operator().request(context(1, map_index=0)).checkpoint_key != first.checkpoint_key


def test_a_run_that_was_deleted_and_triggered_again_under_its_name_asks_anew():
    first, second = context(), context()
    first["ti"].id, second["ti"].id = "0199-a", "0199-b"
    task = operator()
    assert task.request(first).idempotency_key != task.request(second).idempotency_key
    assert task.request(first).checkpoint_key == task.request(second).checkpoint_key
    assert task.request(first).idempotency_key == task.request(first).idempotency_key


def test_names_as_long_as_airflow_allows_make_keys_that_the_ledger_takes():
    long = context()
    long["ti"].dag_id, long["ti"].run_id, long["ti"].task_id = "d" * 250, "r" * 250, "t" * 250
    long["ti"].id = "0" * 36
    other = context()
    other["ti"].dag_id, other["ti"].run_id, other["ti"].task_id = "d" * 250, "r" * 250, "t" * 249 + "u"
    task = operator()
    assert len(task.request(long).idempotency_key) <= 500
    assert task.request(long).checkpoint_key != task.request(other).checkpoint_key


def test_the_task_s_time_limit_is_sent_as_what_is_left_of_this_try():
    assert operator().request(context()).airflow.execution_timeout is None
    task = operator(execution_timeout=timedelta(minutes=10))
    assert task.request(context()).airflow.execution_timeout == 600
    late = context()
    late["ti"].start_date = datetime.now(UTC) - timedelta(minutes=4)
    assert 300 < task.request(late).airflow.execution_timeout <= 360
    late["ti"].start_date = datetime.now(UTC) - timedelta(hours=1)
    assert task.request(late).airflow.execution_timeout == 1


def test_a_time_limit_does_not_reach_airflow_s_own_deferral(api):
    # Airflow would only call the trigger's cleanup, and the job would stay.
    with pytest.raises(TaskDeferred) as caught:
        operator(inline_wait=0, execution_timeout=timedelta(minutes=1)).execute(context())
    assert caught.value.timeout is None
    with api.runtime.ledger.context.database.read() as session:
        job = session.get(Job, caught.value.trigger.job_id)
        assert job.task_deadline == pytest.approx(job.submitted_at + 60)


def test_the_position_in_the_log_is_there_for_a_triggerer_that_starts_anew(api):
    kept: dict[str, Any] = {}
    asking = context()
    asking["ti"].xcom_push = lambda key, value: kept.update({key: value})
    with pytest.raises(TaskDeferred):
        operator(inline_wait=0).execute(asking)
    assert set(kept[POSITION_KEY]) == {"allocation_id", "offset", "lines"}


def test_the_last_try_says_so():
    assert operator().request(context(4, max_tries=3)).airflow.last_try
    assert not operator().request(context(3, max_tries=3)).airflow.last_try


def test_a_try_after_a_lost_worker_takes_what_was_completed_meanwhile(api):
    with pytest.raises(TaskDeferred):
        operator(retries=3, inline_wait=0).execute(context(1, max_tries=3))
    api.end(api.order(), 0, {"status": "done", "metrics": {"n": 1}})
    # The worker or the scheduler was killed before anybody saw that: Airflow begins try 2.
    result = operator(retries=3, inline_wait=60).execute(context(2, max_tries=3))
    assert result == {"status": "done", "metrics": {"n": 1}}
    assert len(api.user.jobs().items) == 1


def test_a_job_that_ends_while_the_next_try_calls_it_off_is_no_failure(api):
    with pytest.raises(TaskDeferred) as caught:
        operator(retries=3, inline_wait=0).execute(context(1, max_tries=3))
    listed = api.user.jobs()
    api.end(api.order(), 0, {"status": "done"})

    class Late:
        """Sees the list as it was before the job's end, and calls the real API otherwise."""

        jobs = staticmethod(lambda **_: listed)
        cancel = staticmethod(api.user.cancel)

    where = ("emep_merge", "run 1", "merge", -1)
    assert [job["id"] for job in listed.items] == [caught.value.trigger.job_id]
    assert cancel_jobs(Late(), *where, up_to_try=1, reason="try 2 has begun") == []


def test_a_task_that_was_cleared_does_its_work_anew(api):
    with pytest.raises(TaskDeferred):
        operator(retries=3, inline_wait=0).execute(context(1, max_tries=3))
    api.end(api.order(), 0, {"status": "done"})
    # Clearing after try 1 gives the task three more retries.
    with pytest.raises(TaskDeferred):
        operator(retries=3, inline_wait=0).execute(context(2, max_tries=4))
    assert len(api.user.jobs().items) == 2


def test_asking_again_after_a_crash_is_the_same_job(api):
    jobs = set()
    for _ in range(2):
        with pytest.raises(TaskDeferred) as caught:
            operator(inline_wait=0).execute(context())
        jobs.add(caught.value.trigger.job_id)
    assert len(jobs) == 1


def test_bad_input_is_not_tried_again_and_says_file_and_field(api):
    error = {
        "code": "bad_input",
        "message": "unknown method 'linaer'",
        "file": "r.yaml",
        "field": "merge_method",
    }
    agent = in_background(lambda: api.end(api.order(), 65, {"status": "failed", "error": error}))
    with pytest.raises(AirflowFailException) as caught:
        operator(inline_wait=120).execute(context())
    agent.join()
    assert str(caught.value) == "r.yaml: merge_method: unknown method 'linaer'"


def test_a_failure_of_the_work_is_tried_again(api):
    agent = in_background(
        lambda: api.end(api.order(), 1, {"status": "failed", "error": {"message": "disk full"}})
    )
    with pytest.raises(AirflowException, match="disk full") as caught:
        operator(inline_wait=120).execute(context())
    agent.join()
    assert not isinstance(caught.value, AirflowFailException)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpu_count": 64}, ["gpu_count", "merge", "64"]),
        ({"gpu_memory_min": "200Gi"}, ["200"]),
        ({"gpu_type": "TPU"}, ["TPU"]),
        ({"engine": "evolve_candidates", "gpu_count": 5}, ["5", "4"]),
        ({"node_count": 2}, ["node_count", "2"]),
        ({"gpu_count": 8, "gpu_per_node": 4}, ["node_count", "2"]),
        ({"job_queue": "artifact"}, ["queue", "artifact"]),
        ({"priority": "urgent"}, ["urgent"]),
        ({"job_queue": "mrege"}, ["mrege"]),
    ],
)
def test_what_can_never_run_fails_at_once_with_the_scheduler_s_sentence(api, fields, words):
    with pytest.raises(AirflowFailException) as caught:
        operator(**fields).execute(context())
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_of_the_wrong_type_is_named():
    with pytest.raises(AirflowFailException, match=r"max_duration: .*soon"):
        operator(max_duration="soon").request(context())


def test_someone_who_may_not_submit_is_told(api, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", api.connection("viewer"))
    with pytest.raises(AirflowFailException, match="viewer"):
        operator().execute(context())


def test_an_api_that_stays_away_fails_the_try_and_is_tried_again(monkeypatch):
    monkeypatch.setattr(outage, "PATIENCE_SECONDS", 0.1)
    connection = '{"conn_type": "http", "host": "127.0.0.1", "port": 9, "login": "emep", "password": "x"}'
    monkeypatch.setenv("AIRFLOW_CONN_EMEP_DEFAULT", connection)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9") as caught:
        operator().execute(context())
    assert not isinstance(caught.value, AirflowFailException)


def asked(task: FairShareGpuOperator, **at: Any) -> str:
    """Let one try ask and defer; its job."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context(**at))
    return str(caught.value.trigger.job_id)


ENDING = (JobState.CANCELLED, JobState.YIELDING)


@pytest.mark.parametrize("state", ["restarting", "failed", "success", None])
def test_killing_the_worker_s_leg_of_a_task_that_was_marked_or_cleared_cancels_the_job(api, state):
    task = operator(inline_wait=0)
    job_id = asked(task)
    airflow_says(api, state)
    task.on_kill()
    assert api.user.job(job_id).state in ENDING


@pytest.mark.parametrize("state", ["running", "up_for_retry"])
def test_killing_the_worker_s_leg_of_a_task_that_goes_on_leaves_the_job(api, state):
    task = operator(inline_wait=0)
    job_id = asked(task)
    airflow_says(api, state)
    task.on_kill()
    assert api.user.job(job_id).state not in ENDING


def test_killing_the_worker_s_leg_while_the_api_is_away_leaves_the_job(api):
    task = operator(inline_wait=0)
    job_id = asked(task)
    airflow_says(api, "failed")
    api.take_away()
    task.on_kill()
    api.bring_back()
    assert api.user.job(job_id).state not in ENDING


# ---- outages -----------------------------------------------------------------------------------------------


def test_asking_waits_through_an_outage_and_asks_once(api):
    api.take_away()
    back = threading.Timer(4.0, api.bring_back)
    back.start()
    job_id = asked(operator(inline_wait=0))
    back.join()
    assert [job["id"] for job in api.user.jobs().items] == [job_id]


def test_an_answer_that_was_lost_is_asked_for_again_and_is_the_same_job(api, monkeypatch):
    """The server takes the request, and is killed before it has answered."""
    from emep.client import EmepClient, EmepConnectionError

    submit, lost = EmepClient.submit_job, []

    def once_lost(self, request):
        job = submit(self, request)
        if not lost:
            lost.append(job.id)
            raise EmepConnectionError("the connection broke", url="http://x")
        return job

    monkeypatch.setattr(EmepClient, "submit_job", once_lost)
    assert [asked(operator(inline_wait=0))] == lost
    assert len(api.user.jobs().items) == 1


def test_a_job_that_cannot_be_watched_is_left_to_its_trigger(api):
    going = threading.Timer(1.0, api.take_away)
    going.start()
    job_id = asked(operator(inline_wait=300))
    going.join()
    api.bring_back()
    assert api.user.job(job_id).state == JobState.STARTING


def test_what_is_refused_is_refused_at_once_though_outages_are_waited_for(api):
    with pytest.raises(AirflowFailException):
        operator(gpu_count=64).execute(context())


def test_a_try_takes_over_what_the_one_before_has_running(api):
    first = asked(operator(retries=3, inline_wait=0), try_number=1, max_tries=3)
    order = api.order()
    second = asked(operator(retries=3, inline_wait=0), try_number=2, max_tries=3)
    assert second == first
    assert api.user.job(first).airflow.try_number == 2
    api.end(order, 0, {"status": "done", "metrics": {"n": 1}})
    assert api.user.job(first).state is JobState.COMPLETED
    assert len(api.user.jobs().items) == 1


def test_a_cleared_task_takes_nothing_over_and_calls_the_old_job_off(api):
    first = asked(operator(retries=3, inline_wait=0), try_number=1, max_tries=3)
    # Clearing after try 1 gives the task three more retries.
    second = asked(operator(retries=3, inline_wait=0), try_number=2, max_tries=4)
    assert second != first
    assert api.user.job(first).state in ENDING


def test_killing_before_anything_was_asked_does_nothing():
    operator().on_kill()


def test_the_worker_s_last_leg_reads_the_event(api):
    with pytest.raises(TaskDeferred) as caught:
        operator(inline_wait=0).execute(context())
    api.end(api.order(), 0, {"metrics": {"n": 2}})
    event = {"job": api.user.job(caught.value.trigger.job_id).model_dump(mode="json")}
    assert operator(return_field="metrics.n").execute_complete(context(), event) == 2


def test_the_operator_does_not_use_airflow_s_own_queue():
    assert operator(job_queue="eval").queue == "default"


def test_a_worker_that_crashed_after_it_had_asked_gets_its_job_when_the_try_is_run_again(api):
    """The broker hands the same try to another worker: later, in another trace, by other clocks."""
    own = context()
    own["ti"].id, own["ti"].start_date = "0199-a", datetime.now(UTC) - timedelta(minutes=1)
    fields = {"execution_timeout": timedelta(hours=1), "inline_wait": 0, "retries": 3}
    with pytest.raises(TaskDeferred) as first:
        operator(**fields, trace_id="trace-1").execute(own)
    # A person has meanwhile given it more retries, which says nothing of the work of this try.
    own["ti"].max_tries, own["ti"].start_date = 5, datetime.now(UTC) - timedelta(minutes=20)
    with pytest.raises(TaskDeferred) as second:
        operator(**fields, trace_id="trace-2").execute(own)
    assert first.value.trigger.job_id == second.value.trigger.job_id
    assert api.user.jobs(dag_id="emep_merge").total == 1
    with pytest.raises(AirflowFailException, match=r"spec\.input\.recipe: idempotency key"):
        operator(**fields, input={"recipe": "another"}).execute(own)
