"""The agent as a process: orders in, work done, ends reported, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.agent.conftest import AgentProcess, gone, when_written
from tests.builders.small_api import SECRET, SmallApi, start_order

from emep.wire.base import Directive
from emep.wire.nodes import StopOrder

Start = Callable[..., AgentProcess]


def test_a_node_registers_with_simulated_gpus_in_groups_of_four(api: SmallApi, start_agent: Start) -> None:
    start_agent("--simulate", "8", "--group-size", "4", "--rack", "r1", "--label", "zone=a", "--cpu", "3")
    node = api.nodes["n1"]
    assert [gpu.nvlink_group_id for gpu in node.gpus] == ["n1/nvlink-0"] * 4 + ["n1/nvlink-1"] * 4
    assert len({gpu.uuid for gpu in node.gpus}) == 8
    assert (node.rack, node.labels, node.cpu) == ("r1", {"zone": "a"}, 3)
    assert node.memory > 0
    report = api.until(lambda: api.health.get("n1"))[0]
    assert [(gpu.index, gpu.healthy) for gpu in report.gpus] == [(index, True) for index in range(8)]


def test_work_is_started_logged_and_completed(api: SmallApi, start_agent: Start) -> None:
    agent = start_agent()
    api.give(start_order("a1", steps=[["print", "hello"], ["result", {"status": "done"}], ["print", "bye"]]))
    completion = api.ended("a1")
    assert (completion.exit_code, completion.result) == (0, {"status": "done"})
    assert api.log_text("a1") == "hello\nbye\n"
    assert api.closed_logs == ["a1"]
    assert agent.run_folder("a1").stat().st_mode & 0o777 == 0o700
    api.until(lambda: api.polls[-1].running == [])


def test_the_engine_gets_the_order_and_its_devices_but_no_secret(api: SmallApi, start_agent: Start) -> None:
    agent = start_agent()
    api.give(start_order("a1", gpus=(1, 2), epoch=3, steps=[["environment"]]))
    api.ended("a1", 3)
    seen = json.loads(api.log_text("a1"))
    folder = agent.run_folder("a1", 3)
    assert {
        "EMEP_API_URL": api.url,
        "EMEP_ALLOCATION_ID": "a1",
        "EMEP_LEASE_TOKEN": "lease-a1-3",
        "EMEP_LEASE_EPOCH": "3",
        "EMEP_RESULT_PATH": str(folder / "result.json"),
        "EMEP_GPU_INDICES": "1,2",
        "CUDA_VISIBLE_DEVICES": "",
        "EMEP_CHECKPOINT_URI": "file:///tmp/ckpt",
        "TRACEPARENT": "00-trace",
        "PATH": os.environ["PATH"],
    }.items() <= seen.items()
    assert SECRET not in json.dumps(seen)
    assert "SECRET_OF_THE_AGENT" not in seen


def test_a_cpu_job_runs_and_sees_no_gpu(api: SmallApi, start_agent: Start) -> None:
    start_agent("--simulate", "0")
    api.give(start_order("a1", gpus=(), steps=[["environment", "EMEP_GPU_INDICES", "CUDA_VISIBLE_DEVICES"]]))
    assert api.ended("a1").exit_code == 0
    assert json.loads(api.log_text("a1")) == {"EMEP_GPU_INDICES": "", "CUDA_VISIBLE_DEVICES": ""}


def test_logs_arrive_while_the_work_runs(api: SmallApi, start_agent: Start, folder: Path) -> None:
    start_agent()
    api.give(start_order("a1", steps=[["print", "first"], ["wait", str(folder / "go")], ["print", "second"]]))
    api.until(lambda: "first" in api.log_text("a1"))
    assert "second" not in api.log_text("a1")
    (folder / "go").touch()
    api.ended("a1")
    assert api.log_text("a1") == "first\nsecond\n"


def test_a_killed_supervisor_is_reported_and_leaves_nothing_on_the_gpu(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    start_agent()
    steps = [["detach", str(folder / "child")], ["pid", str(folder / "pid")], ["wait", str(folder / "never")]]
    api.give(start_order("a1", steps=steps))
    supervisor, child = int(when_written(folder / "pid")), int(when_written(folder / "child"))
    os.kill(supervisor, signal.SIGKILL)
    completion = api.ended("a1")
    assert completion.exit_code == 137
    assert completion.message == "the supervisor ended by SIGKILL and left no result"
    assert gone(child, timeout=0.5), "the engine's child still runs though the end was reported"


def test_an_exit_status_is_passed_on_with_the_result(api: SmallApi, start_agent: Start) -> None:
    start_agent()
    result = {"status": "failed", "error": {"code": "bad_input", "message": "recipe.yaml: no models"}}
    api.give(start_order("a1", steps=[["result", result], ["exit", 65]]))
    completion = api.ended("a1")
    assert (completion.exit_code, completion.result, completion.message) == (65, result, None)


def test_a_result_that_the_ledger_can_never_take_ends_the_job_with_that_sentence(
    api: SmallApi, start_agent: Start
) -> None:
    start_agent()
    text = '{"status": "done", "exit_code": 0, "metrics": {"loss": NaN}}'
    api.give(start_order("a1", steps=[["result_text", text]]))
    completion = api.ended("a1")
    assert (completion.exit_code, completion.result) == (65, None)
    words = "result.metrics.loss: nan is not a finite number"
    assert completion.message == f"the Result in result.json is refused: {words}"


def test_a_repeated_order_starts_nothing_twice(api: SmallApi, start_agent: Start, folder: Path) -> None:
    start_agent()
    order = start_order("a1", steps=[["print", "once"], ["wait", str(folder / "go")]])
    api.give(order)
    api.give(order)
    api.until(lambda: api.running_now() == {("a1", 1)})
    (folder / "go").touch()
    api.ended("a1")
    # The API forgets the completion and repeats the order, as after its database was restored.
    polls = len(api.polls)
    api.forget_completions()
    api.until(lambda: len(api.polls) >= polls + 2)
    assert api.log_text("a1") == "once\n"
    assert ("a1", 1) not in api.running_now()


def test_two_epochs_of_one_allocation_never_share_a_gpu(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    start_agent()
    api.give(start_order("a1", epoch=1, steps=[["wait", str(folder / "go")]]))
    api.until(lambda: api.running_now() == {("a1", 1)})
    api.give(start_order("a1", epoch=2, steps=[["print", "second epoch"]]))
    api.until(lambda: api.running_now() == {("a1", 1), ("a1", 2)})
    assert "second epoch" not in api.log_text("a1")
    (folder / "go").touch()
    assert api.ended("a1", 2).exit_code == 0


def test_what_waits_for_a_gpu_starts_when_it_is_free_and_not_when_the_order_is_repeated(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    start_agent()
    api.give(start_order("a1", steps=[["wait", str(folder / "go")]]))
    api.until(lambda: api.running_now() == {("a1", 1)})
    api.give(start_order("a2", steps=[["print", "next"]]))
    # A poll that lists it says that the agent has taken the order; one that it gave up would not be enough.
    api.until(lambda: api.running_now() == {("a1", 1), ("a2", 1)})
    api.forget_orders()
    (folder / "go").touch()
    assert api.ended("a2").exit_code == 0


def test_what_waits_for_a_gpu_is_listed_so_that_its_gpus_are_nobody_elses_until_it_is_dropped(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    agent = start_agent()
    api.give(start_order("a1", steps=[["wait", str(folder / "go")]]))
    api.until(lambda: api.running_now() == {("a1", 1)})
    api.give(start_order("a2", steps=[["print", "must not run"]]))
    api.until(lambda: api.running_now() == {("a1", 1), ("a2", 1)})
    api.forget_orders()
    api.give(stop("a2", Directive.ABORT, 0))
    api.until(lambda: api.running_now() == {("a1", 1)})
    (folder / "go").touch()
    api.ended("a1")
    # What waits is started before the end of what it waits for is known: it would be listed, or have run.
    api.until(lambda: api.running_now() == set())
    assert not agent.run_folder("a2").exists()
    assert api.log_text("a2") == ""


def test_a_stop_order_lets_the_work_checkpoint(api: SmallApi, start_agent: Start, folder: Path) -> None:
    start_agent()
    steps = [["on_term", 75], ["pid", str(folder / "pid")], ["wait", str(folder / "never")]]
    api.give(start_order("a1", steps=steps))
    when_written(folder / "pid")
    api.until(lambda: api.running_now() == {("a1", 1)})
    api.give(stop("a1", Directive.CHECKPOINT_AND_EXIT, 60))
    assert api.ended("a1").exit_code == 75
    assert "told to end" in api.log_text("a1")


def test_work_that_ignores_its_grace_is_killed(api: SmallApi, start_agent: Start, folder: Path) -> None:
    start_agent()
    steps = [["ignore_term"], ["detach", str(folder / "child")], ["wait", str(folder / "never")]]
    api.give(start_order("a1", steps=steps))
    child = int(when_written(folder / "child"))
    api.until(lambda: api.running_now() == {("a1", 1)})
    api.give(stop("a1", Directive.CHECKPOINT_AND_EXIT, 0.5))
    assert api.ended("a1").exit_code == 137
    assert gone(child, timeout=0.5)


def test_abort_kills_at_once(api: SmallApi, start_agent: Start, folder: Path) -> None:
    start_agent()
    steps = [["on_term", 0], ["pid", str(folder / "pid")], ["wait", str(folder / "never")]]
    api.give(start_order("a1", steps=steps))
    pid = int(when_written(folder / "pid"))
    api.until(lambda: api.running_now() == {("a1", 1)})
    api.give(stop("a1", Directive.ABORT, 30))
    assert api.ended("a1").exit_code == 137
    assert gone(pid, timeout=0.5)
    assert "told to end" not in api.log_text("a1")


def test_a_restarted_agent_adopts_what_still_runs(api: SmallApi, start_agent: Start, folder: Path) -> None:
    agent = start_agent()
    steps = [
        ["print", "before"], ["pid", str(folder / "pid")], ["wait", str(folder / "go")],
        ["print", "after"], ["result", {"status": "done"}], ["exit", 3],
    ]  # fmt: skip
    api.give(start_order("a1", steps=steps))
    pid = int(when_written(folder / "pid"))
    api.until(lambda: "before" in api.log_text("a1"))
    # A poll on its way when the agent is killed says so, too.
    api.until(lambda: api.running_now() == {("a1", 1)})
    agent.kill()
    polls = len(api.polls)
    agent.start()
    api.until(lambda: len(api.polls) > polls)
    assert api.running_now() == {("a1", 1)}
    assert not gone(pid, timeout=0)
    (folder / "go").touch()
    assert api.ended("a1").exit_code == 3, "the status of a process that is not a child"
    assert api.log_text("a1") == "before\nafter\n"


def test_what_ended_while_no_agent_was_there_is_reported_by_the_next(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    agent = start_agent()
    api.give(
        start_order(
            "a1",
            steps=[
                ["pid", str(folder / "pid")],
                ["wait", str(folder / "go")],
                ["print", "late"],
                ["exit", 9],
            ],
        )
    )
    api.give(
        start_order("a2", gpus=(1,), steps=[["pid", str(folder / "pid2")], ["wait", str(folder / "never")]])
    )
    pid, pid2 = int(when_written(folder / "pid")), int(when_written(folder / "pid2"))
    api.until(lambda: api.running_now() == {("a1", 1), ("a2", 1)})
    agent.kill()
    (folder / "go").touch()
    # The whole group of a2 dies, so that nobody is left who could write down how.
    os.killpg(os.getsid(pid2), signal.SIGKILL)
    assert gone(pid)
    assert gone(pid2)
    agent.start()
    assert api.ended("a1").exit_code == 9
    assert api.log_text("a1") == "late\n"
    assert api.ended("a2").exit_code == 137


def done(epoch: int = 1) -> dict[str, object]:
    return {"status": "done", "exit_code": 0, "metrics": {"acc": 0.5}, "epoch": epoch}


def test_a_supervisor_that_was_killed_after_its_result_has_completed(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    start_agent()
    steps = [["result", done()], ["pid", str(folder / "pid")], ["wait", str(folder / "never")]]
    api.give(start_order("a1", steps=steps))
    os.kill(int(when_written(folder / "pid")), signal.SIGKILL)
    completion = api.ended("a1")
    assert (completion.exit_code, completion.result, completion.message) == (0, done(), None)


def test_work_that_had_finished_when_its_grace_was_over_has_completed(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    start_agent()
    steps = [["ignore_term"], ["result", done()], ["pid", str(folder / "pid")], ["wait", str(folder / "x")]]
    api.give(start_order("a1", steps=steps))
    when_written(folder / "pid")
    api.until(lambda: api.running_now() == {("a1", 1)})
    api.give(stop("a1", Directive.CHECKPOINT_AND_EXIT, 0.5))
    completion = api.ended("a1")
    assert (completion.exit_code, completion.result) == (0, done())


def test_a_result_that_was_left_while_no_agent_was_there_is_reported_by_the_next(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    agent = start_agent()
    steps = [
        ["pid", str(folder / "pid")], ["wait", str(folder / "go")], ["result", done()],
        ["wait", str(folder / "never")],
    ]  # fmt: skip
    api.give(start_order("a1", steps=steps))
    pid = int(when_written(folder / "pid"))
    api.until(lambda: api.running_now() == {("a1", 1)})
    agent.kill()
    (folder / "go").touch()
    when_written(agent.run_folder("a1") / "result.json")
    os.killpg(os.getsid(pid), signal.SIGKILL)
    assert gone(pid)
    agent.start()
    completion = api.ended("a1")
    assert (completion.exit_code, completion.result) == (0, done())


def test_a_result_of_another_epoch_says_nothing_of_this_one(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    start_agent()
    steps = [["result", done(epoch=1)], ["pid", str(folder / "pid")], ["wait", str(folder / "never")]]
    api.give(start_order("a1", epoch=2, steps=steps))
    os.kill(int(when_written(folder / "pid")), signal.SIGKILL)
    completion = api.ended("a1", 2)
    assert (completion.exit_code, completion.result) == (137, None)


def test_an_outage_of_the_api_costs_no_work_and_no_log(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    start_agent()
    api.give(
        start_order(
            "a1",
            steps=[
                ["pid", str(folder / "pid")],
                ["wait", str(folder / "go")],
                ["print", "x" * 300_000],
                ["exit", 0],
            ],
        )
    )
    pid = int(when_written(folder / "pid"))
    api.until(lambda: api.running_now() == {("a1", 1)})
    api.stop()
    (folder / "go").touch()
    assert gone(pid)
    api.start()
    assert api.ended("a1").exit_code == 0
    # After a long outage the end is told first, and the rest of the log follows.
    api.until(lambda: "a1" in api.closed_logs)
    assert api.log_text("a1") == "x" * 300_000 + "\n"


def test_a_stale_epoch_is_let_go(api: SmallApi, start_agent: Start) -> None:
    agent = start_agent()
    api.refuse_completions["a1"] = 409
    api.give(start_order("a1", steps=[["print", "zombie"]]))
    api.ended("a1")
    api.until(lambda: api.polls[-1].running == [])
    when_written(agent.run_folder("a1") / "done.json")
    assert len(api.completions["a1", 1]) == 1


def test_gpus_that_are_not_the_granted_ones_end_the_work_with_that_sentence(
    api: SmallApi, start_agent: Start
) -> None:
    start_agent()
    order = start_order("a1", steps=[["print", "must not run"]])
    order.gpus[0].uuid = "SIM-other-0"
    api.give(order)
    completion = api.ended("a1")
    assert completion.exit_code == 127
    assert "GPU 0 of node n1 is SIM-n1-0, but SIM-other-0 was granted" in (completion.message or "")
    assert "must not run" not in api.log_text("a1")


def test_an_engine_that_is_not_installed_is_reported(api: SmallApi, start_agent: Start) -> None:
    start_agent("--simulate", "1", "--engine-command", "/nowhere/emep-engine")
    api.give(start_order("a1"))
    assert api.ended("a1").exit_code == 127
    assert "/nowhere/emep-engine cannot be started: No such file or directory" in api.log_text("a1")


def test_an_agent_that_is_told_to_end_ends_what_it_started(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    agent = start_agent()
    api.give(
        start_order(
            "a1", steps=[["on_term", 75], ["pid", str(folder / "pid")], ["wait", str(folder / "never")]]
        )
    )
    pid = int(when_written(folder / "pid"))
    api.until(lambda: api.running_now() == {("a1", 1)})
    assert agent.terminate() == 0
    assert gone(pid, timeout=0)
    assert api.ended("a1").exit_code == 75
    assert api.ended("a1").message == "the agent of node n1 was stopped"
    assert (api.polls[-1].running, api.polls[-1].leaving) == ([], True)


def test_a_node_that_the_api_forgot_registers_anew(api: SmallApi, start_agent: Start) -> None:
    start_agent()
    with api.changed:
        api.nodes.clear()
    api.give(start_order("a1"))
    # The next poll is answered 404.
    api.until(lambda: "n1" in api.nodes)
    assert api.ended("a1").exit_code == 0


def test_a_node_of_which_the_api_forgot_gpus_registers_anew(api: SmallApi, start_agent: Start) -> None:
    start_agent("--simulate", "4", "--report-every", "200ms")
    with api.changed:
        api.nodes["n1"] = api.nodes["n1"].model_copy(update={"gpus": api.nodes["n1"].gpus[:2]})
    # The next report is answered 422.
    api.until(lambda: len(api.nodes["n1"].gpus) == 4)


def test_a_node_whose_state_folder_takes_nothing_offers_no_free_gpu(
    api: SmallApi, start_agent: Start, folder: Path
) -> None:
    agent = start_agent("--simulate", "2", "--report-every", "200ms")
    api.give(start_order("a1", gpus=(0,), steps=[["print", "on"], ["wait", str(folder / "go")]]))
    api.until(lambda: api.log_text("a1"))
    # What cannot be made in a full folder cannot be made in what is none either.
    runs = agent.state_dir / "runs"
    runs.rename(agent.state_dir / "away")
    runs.touch()
    api.give(start_order("a2", gpus=(1,)))
    api.until(lambda: not api.health["n1"][-1].gpus[1].healthy)
    report = api.health["n1"][-1].gpus
    assert report[1].reason == "the agent's state folder takes nothing: Not a directory"
    assert report[0].healthy, "what runs is not harmed"
    runs.unlink()
    (agent.state_dir / "away").rename(runs)
    assert api.ended("a2").exit_code == 0
    api.until(lambda: api.health["n1"][-1].gpus[1].healthy)
    (folder / "go").touch()
    assert api.ended("a1").exit_code == 0


def stop(allocation_id: str, directive: Directive, grace: float) -> StopOrder:
    return StopOrder(allocation_id=allocation_id, epoch=1, directive=directive, grace_seconds=grace)
