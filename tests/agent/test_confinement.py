"""Two plain users, the real API, a real agent and real engines: each writes its own and reads what it may."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import EMEP, end_everything_of
from tests.agent.test_with_real_api import REAL_ENGINE, ended, until
from tests.builders.checkpoints import save_family
from tests.builders.emep_server import AGENT_SECRET, POLICY_FILE, EmepServer

from emep.client import EmepApiError, EmepClient
from emep.layout import run_folder
from emep.wire.base import JobState
from emep.wire.jobs import AirflowTask, JobRequest, JobView, Topology

SECRET = "s3cret-of-another"
ENGINE_USER = "nobody"


class Place:
    """A cluster of one node, with models that all may read and a secret that no job may."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.models, self.outside = folder / "models", folder / "outside"
        self.family = save_family(self.models)
        for path in self.models.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # another user reads them too
        self.outside.mkdir()
        (self.outside / "mine.txt").write_text(SECRET)
        policy = folder / "policy.yaml"
        policy.write_text(f"roots: {{read: [{self.models}]}}\nretries: {{max_infrastructure: 0}}\n")
        os.environ[POLICY_FILE] = str(policy)
        try:
            self.server = EmepServer(folder).start()
        finally:
            del os.environ[POLICY_FILE]
        self.artifacts = folder / "artifact"
        self.clients = {
            name: EmepClient.from_environment({**self.server.environment(name), "HOME": str(folder)})
            for name in ("admin", "alice", "bob")
        }

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self.server.stop()

    def recipe(self) -> dict[str, Any]:
        models = [{"model": str(self.family[name]), "parameters": {"weight": 0.5}} for name in ("one", "two")]
        return {"merge_method": "linear", "models": models}

    def submit(
        self,
        user: str,
        given: dict[str, Any] | None = None,
        *,
        engine: str = "merge",
        output: str | None = None,
        node: str = "plain",
        run: str | None = None,
        project: str = "default",
        **fields: Any,
    ) -> JobView:
        """Submit as a person, or with ``run`` as EMEP's service account in the name of the run's user."""
        spec: dict[str, Any] = {"schema_version": 1, "engine": engine, "device": "cpu"}
        spec["input"] = {"recipe": self.recipe()} if given is None else given
        if output is not None:
            spec["output_uri"] = output
        if run is not None:
            fields |= {"user": user, "airflow": AirflowTask(dag_id="emep_merge", run_id=run, task_id="merge")}
        request = JobRequest(
            spec=spec, topology=Topology(affinity={"test": node}), gpu_count=0, project=project, **fields
        )
        return self.clients["admin" if run is not None else user].submit_job(request)

    def done(self, job: JobView) -> JobView:
        return ended(self.clients["admin"], job)

    def log(self, job: JobView) -> str:
        return self.clients["admin"].logs(job.allocation_id or "").text

    def says_nothing_of_the_secret(self, job: JobView) -> bool:
        told = job.model_dump_json() + self.log(job)
        return SECRET not in told and "root:" not in told


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="d-confined-", dir="/tmp", ignore_cleanup_errors=True) as name:
        place = Place(Path(name).resolve())
        yield place
        place.close()


def start_agent(place: Place, name: str, command: list[str], *options: str) -> tuple[Any, Path]:
    state = place.folder / f"agent-{name}"
    given = [EMEP, "agent", "--simulate", "0", "--name", name, "--api-url", place.server.url]
    given += ["--state-dir", str(state), "--engine-command", REAL_ENGINE, "--label", f"test={name}", *options]
    with (place.folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, *given],
            env={**os.environ, "EMEP_AGENT_TOKEN": AGENT_SECRET, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )

    def is_there() -> bool:
        assert process.poll() is None, (place.folder / f"{name}.log").read_text()
        return name in {node["name"] for node in place.clients["admin"].nodes().items}

    until(is_there)
    return process, state


def end_agent(process: Any, state: Path) -> None:
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.wait(180)
    end_everything_of(state)


@pytest.fixture(scope="module")
def agent(place: Place) -> Iterator[None]:
    process, state = start_agent(place, "plain", [])
    yield
    end_agent(process, state)


@pytest.mark.parametrize(
    "output",
    [
        "{outside}",
        "file://{outside}",
        "../other",
        "file://{artifacts}/projects/default/jobs/../../other",
        "{artifacts}/projects/default/runs/bob/emep_merge/of-bob",
        "a\nb",
        "n" * 300,
    ],
)
def test_an_output_outside_is_refused_at_the_door(place: Place, output: str) -> None:
    text = output.format(outside=place.outside, artifacts=place.artifacts)
    with pytest.raises(EmepApiError) as refused:
        place.submit("alice", {"recipe": place.recipe(), "force": True}, output=text)
    assert refused.value.status == 422
    assert "output_uri" in str(refused.value)


@pytest.mark.parametrize("recipe", ["/etc/shadow", "file:///etc/shadow", "{outside}/mine.txt"])
def test_an_input_outside_is_refused_at_the_door(place: Place, recipe: str) -> None:
    with pytest.raises(EmepApiError) as refused:
        place.submit("alice", {"recipe": recipe.format(outside=place.outside)})
    assert refused.value.status == 422
    assert "input.recipe" in str(refused.value)


def test_a_link_that_looks_like_a_model_ends_the_job_and_tells_no_content(place: Place, agent: None) -> None:
    link = place.models / "recipe.yaml"
    link.symlink_to(place.outside / "mine.txt")
    job = place.done(place.submit("alice", {"recipe": str(link)}))
    assert (job.state, job.exit_code) == (JobState.FAILED, 65)
    assert "lies outside of what this job may read" in job.reason
    assert place.says_nothing_of_the_secret(job)


def test_a_file_that_may_be_read_and_is_no_recipe_comes_back_by_its_name_alone(
    place: Place, agent: None
) -> None:
    secret = place.models / "secrets.yaml"
    secret.write_text(f"password: {SECRET}\ntoken-{SECRET}: 1\n")
    job = place.done(place.submit("alice", {"recipe": str(secret)}))
    assert (job.state, job.exit_code) == (JobState.FAILED, 65)
    assert "secrets.yaml" in job.reason
    assert place.says_nothing_of_the_secret(job)


def test_the_checkpoint_key_of_anothers_job_is_a_key_of_the_own(place: Place, agent: None) -> None:
    theirs = place.submit("bob", checkpoint_key="shared")
    mine = place.submit("alice", checkpoint_key="shared")
    for job in (theirs, mine):
        assert (found := place.done(job)).state is JobState.COMPLETED, found.reason
    folders = sorted(path.parent.name for path in (place.folder / "checkpoint").glob("*/shared"))
    assert folders == ["alice", "bob"]


def test_members_read_their_projects_runs_and_nobody_elses(place: Place, agent: None) -> None:
    first = place.submit("alice", run="of-alice", project="team", output="models")
    other = place.submit("bob", run="of-alice", project="rivals", output="models")
    for job in (first, other):
        assert (found := place.done(job)).state is JobState.COMPLETED, found.reason
    made = place.artifacts / run_folder("team", "alice", "emep_merge", "of-alice") / "models" / "model"
    before = (made / "model.safetensors").stat()
    kept = before.st_ino, before.st_mtime_ns
    check = {"models": [str(made)]}
    same = place.submit("bob", check, engine="compatibility_check", run="of-bob", project="team")
    assert place.done(same).state is JobState.COMPLETED
    with pytest.raises(EmepApiError, match="outside of what this job may read"):
        place.submit("bob", check, engine="compatibility_check", run="of-bob", project="rivals")
    # Another run of the same project is read, never written, by force neither.
    with pytest.raises(EmepApiError, match="outside of what this job may write"):
        place.submit(
            "bob",
            {"recipe": place.recipe(), "force": True},
            run="of-bob",
            project="team",
            output=str(made.parent),
        )
    after = (made / "model.safetensors").stat()
    assert (after.st_ino, after.st_mtime_ns) == kept


def test_a_link_swapped_between_check_and_use_gains_nothing(place: Place, agent: None) -> None:
    fine, swapped = place.models / "fine.yaml", place.models / "swapping.yaml"
    fine.write_text(json.dumps(place.recipe()))
    swapped.symlink_to(fine)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in (fine, place.outside / "mine.txt"):
                (place.models / "beside").symlink_to(target)
                (place.models / "beside").replace(swapped)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(4):
            job = place.done(place.submit("alice", {"recipe": str(swapped)}))
            assert place.says_nothing_of_the_secret(job)
    finally:
        over.set()
        thread.join()


def as_seen_by_others() -> list[str]:
    """A command in whose view of the machine another user can run this Python; empty where it can anyway."""
    home = Path(sys.base_prefix)
    closed = next((folder for folder in reversed(home.parents) if not folder.stat().st_mode & 0o001), None)
    if closed is None:
        return []
    if shutil.which("unshare") is None:
        pytest.skip(f"{closed} is closed to other users, and there is no unshare")
    inside = home.relative_to(closed)
    keep = tempfile.mkdtemp(prefix="d-python-", dir="/tmp")
    script = (
        f"mount --bind {home} {keep} && mount -t tmpfs -o mode=755 tmpfs {closed} && "
        f"mkdir -p {closed / inside} && "
        f'mount --bind {keep} {closed / inside} && exec "$@"'
    )
    command = ["unshare", "--mount", "sh", "-c", script, "sh"]
    probe = subprocess.run([*command, "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this machine's Python is in {closed}, which is closed to other users")
    return command


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts engines as another user")
def test_engines_of_another_user_write_their_own_run_and_read_no_secret_of_the_agent(place: Place) -> None:
    uid = pwd.getpwnam(ENGINE_USER).pw_uid
    process, state = start_agent(place, "other", as_seen_by_others(), "--run-as", ENGINE_USER)
    try:
        job = place.submit("alice", node="other", run="as-other", output="models")
        job = place.done(job)
        assert job.state is JobState.COMPLETED, (job.reason, place.log(job))
        own = place.artifacts / run_folder("default", "alice", "emep_merge", "as-other")
        made = own / "models" / "model" / "model.safetensors"
        assert (own.stat().st_uid, made.stat().st_uid) == (uid, uid)
        assert own.parent.stat().st_uid == 0
        folder = next((state / "runs").iterdir())
        secrets = [folder / "order.json", folder / "log.txt", state / "registered.json"]
        reading = f"import os; os.setgid(65534); os.setuid({uid}); "
        for path in secrets:
            tried = f"{reading}open({str(path)!r})"
            assert (
                subprocess.run([sys.executable, "-c", tried], check=False, capture_output=True).returncode
                != 0
            )
        for path in (state, state / "runs", own.parent):
            tried = f"{reading}open({str(path / 'new')!r}, 'w')"
            assert (
                subprocess.run([sys.executable, "-c", tried], check=False, capture_output=True).returncode
                != 0
            )
    finally:
        end_agent(process, state)
