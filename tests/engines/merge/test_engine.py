"""The merge engine: the folder it leaves, determinism, resuming, and what must leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.builders.checkpoints import save_family, save_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines.artifacts import FolderArtifactStore, digest_folder, path_to_uri
from engines.checkpoint import CheckpointStore, StaleEpochError, spec_digest
from engines.contract import BadInputError, Context, EngineError, Preempted, Spec
from engines.merge.run.engine import run
from engines.merge.run.in_memory import InMemoryMerger
from engines.merge.run.output import OutputFolder
from engines.tensor.layout import read_layout


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(path) for name, path in save_family(tmp_path_factory.mktemp("family")).items()}


def recipe(family: dict[str, str], method: str = "dare_ties", **more: Any) -> dict[str, Any]:
    own = {"weight": 0.5, "density": 0.6} if method not in {"linear"} else {"weight": 0.5}
    models = [{"model": family[name], "parameters": dict(own)} for name in ("one", "two")]
    return {"merge_method": method, "base_model": family["base"], "models": models, **more}


def context(tmp_path: Path, fields: dict[str, Any], **options: Any) -> Context:
    spec = Spec("merge", fields, path_to_uri(tmp_path / "out"), device="cpu", seed=options.pop("seed", 4))
    spec = replace(spec, chunked=options.pop("chunked", False))
    store = CheckpointStore(
        path_to_uri(tmp_path / "checkpoints"), spec_digest(spec), epoch=options.pop("epoch", 1)
    )
    return Context(spec, FolderArtifactStore(spec.output_uri), store, **options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in read_layout(folder).files:
        found |= load_file(file)
    return found


def remains(tmp_path: Path) -> list[str]:
    """Names in the output's parent; the test's own result is called model."""
    folder = tmp_path / "out"
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("method", ["linear", "task_arithmetic", "ties", "dare_linear", "dare_ties"])
def test_the_output_loads_and_is_what_the_in_memory_merger_gives(
    family: dict[str, str], tmp_path: Path, method: str
) -> None:
    wanted = recipe(family, method, dtype="bfloat16")
    outcome = run(context(tmp_path, {"recipe": wanted, "shard_bytes": 3000}))
    folder = tmp_path / "out" / "model"
    assert outcome.outputs["model"].uri == path_to_uri(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, report = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.bfloat16
    with InMemoryMerger(wanted, seed=4) as merger:
        merged = merger.merge(wanted)
        config = merger.config
    written = weights(folder)
    assert set(written) == set(merged)
    assert all(torch.equal(written[name], merged[name]) for name in merged)
    assert (
        json.loads((folder / "config.json").read_text())["torch_dtype"] == config["torch_dtype"] == "bfloat16"
    )


def test_slerp_and_slices_load_too(family: dict[str, str], tmp_path: Path) -> None:
    slerp = {
        "merge_method": "slerp",
        "base_model": family["one"],
        "models": [{"model": family["one"]}, {"model": family["two"]}],
        "parameters": {"t": [{"filter": "mlp", "value": [0, 1]}, {"value": 0.5}]},
    }
    stack = {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [{"model": family["one"], "layer_range": [a, b]}]} for a, b in ((0, 3), (1, 3))
        ],
    }
    run(context(tmp_path, {"recipe": slerp, "output_name": "slerp"}))
    run(context(tmp_path, {"recipe": stack, "output_name": "stack"}))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "slerp").config.num_hidden_layers == 3
    deep = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "stack")
    assert deep.config.num_hidden_layers == 5
    assert deep(torch.tensor([[1, 5, 7]])).logits.isfinite().all()
    original = AutoModelForCausalLM.from_pretrained(family["one"])
    copied = deep.model.layers[4].mlp.up_proj.weight
    assert torch.equal(copied, original.model.layers[2].mlp.up_proj.weight)


def test_the_donors_files_are_copied_byte_for_byte(family: dict[str, str], tmp_path: Path) -> None:
    run(context(tmp_path, {"recipe": recipe(family)}))
    folder = tmp_path / "out" / "model"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (folder / name).read_bytes() == (Path(family["base"]) / name).read_bytes(), name
    assert AutoTokenizer.from_pretrained(folder)("w1 w2")["input_ids"] == [4, 5]


def test_the_manifest_tells_how_to_make_it_again(family: dict[str, str], tmp_path: Path) -> None:
    outcome = run(context(tmp_path, {"recipe": recipe(family)}))
    folder = tmp_path / "out" / "model"
    manifest = json.loads((folder / "emep_merge.json").read_text())
    assert manifest["seed"] == 4
    assert manifest["recipe"]["merge_method"] == "dare_ties"
    assert set(manifest["inputs"]) == set(family.values())
    held = {entry.name for entry in folder.iterdir()}
    assert set(manifest["outputs"]) | {"emep_merge.json"} == held
    assert outcome.outputs["model"].sha256 == digest_folder(folder)[0]
    assert outcome.outputs["model"].bytes == digest_folder(folder)[1]


def test_the_result_depends_on_neither_chunks_nor_shards_nor_where_it_lies(
    family: dict[str, str], tmp_path: Path
) -> None:
    moved = {name: shutil.copytree(path, tmp_path / "moved" / name) for name, path in family.items()}
    first = run(context(tmp_path / "a", {"recipe": recipe(family)}))
    run(context(tmp_path / "b", {"recipe": recipe(family), "shard_bytes": 700}, chunked=True))
    run(context(tmp_path / "c", {"recipe": recipe({k: str(v) for k, v in moved.items()})}))
    one, *others = (weights(tmp_path / name / "out" / "model") for name in "abc")
    assert all(torch.equal(one[name], other[name]) for other in others for name in one)
    again = run(context(tmp_path / "d", {"recipe": recipe(family)}))
    assert again.outputs["model"].sha256 == first.outputs["model"].sha256
    other_seed = run(context(tmp_path / "e", {"recipe": recipe(family)}, seed=5))
    assert other_seed.outputs["model"].sha256 != first.outputs["model"].sha256


# Resuming.


def killed(action: Callable[[], Any]) -> None:
    """Run in a forked process and wait for the SIGKILL that it sends to itself."""
    torch.set_num_threads(1)
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(99)  # it should not have come this far
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def killer(after: int) -> Callable[..., bool]:
    """A callback that kills its process the ``after``-th time it is called."""
    calls = []

    def call(*_: Any) -> bool:
        calls.append(1)
        if len(calls) >= after:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    return call


@pytest.mark.parametrize("where", ["progress", "stop_requested"])
@pytest.mark.parametrize("after", [1, 2, 9, 20, 30])
def test_kill_9_then_the_same_again_gives_the_same_bytes(
    family: dict[str, str], tmp_path: Path, where: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMEP_CHECKPOINT_SECONDS", "0")
    fields = {"recipe": recipe(family), "shard_bytes": 3000}
    whole = run(context(tmp_path / "whole", fields))
    killed(lambda: run(context(tmp_path, fields, **{where: killer(after)})))
    assert not (tmp_path / "out" / "model").exists()
    for left in (tmp_path / "out").iterdir():
        assert not (left / "config.json").exists()  # nothing that was left behind loads
    steps = []
    outcome = run(context(tmp_path, fields, progress=lambda what, done, total: steps.append(done)))
    # progress tells of 0 first and of a tensor before its checkpoint; a chunk comes before its tensor's end.
    complete = after - 2 if where == "progress" else after - 1
    assert outcome.resumed_from == (complete if complete > 0 else None)
    assert steps[0] == max(complete, 0)
    assert weights_equal(tmp_path / "whole" / "out" / "model", tmp_path / "out" / "model")
    assert outcome.outputs["model"].sha256 == whole.outputs["model"].sha256
    assert remains(tmp_path) == ["model"]


def weights_equal(left: Path, right: Path) -> bool:
    names = sorted(entry.name for entry in left.iterdir())
    return names == sorted(entry.name for entry in right.iterdir()) and all(
        (left / name).read_bytes() == (right / name).read_bytes() for name in names
    )


def test_told_to_stop_it_saves_a_checkpoint_and_goes_on_from_it(
    family: dict[str, str], tmp_path: Path
) -> None:
    fields = {"recipe": recipe(family)}
    seen: list[int] = []
    first = context(
        tmp_path,
        fields,
        progress=lambda what, done, total: seen.append(done),
        stop_requested=lambda: bool(seen) and seen[-1] >= 7,
    )
    with pytest.raises(Preempted):
        run(first)
    assert first.checkpoints.last is not None
    assert first.checkpoints.last.step == 7
    outcome = run(context(tmp_path, fields))
    assert outcome.resumed_from == 7
    plain = run(context(tmp_path / "plain", fields))
    assert outcome.outputs["model"].sha256 == plain.outputs["model"].sha256


def test_inputs_that_changed_since_the_checkpoint_begin_anew(family: dict[str, str], tmp_path: Path) -> None:
    mine = {name: str(shutil.copytree(path, tmp_path / "in" / name)) for name, path in family.items()}
    fields = {"recipe": recipe(mine)}
    seen: list[int] = []
    with pytest.raises(Preempted):
        run(
            context(
                tmp_path,
                fields,
                progress=lambda what, done, total: seen.append(done),
                stop_requested=lambda: seen[-1] >= 7,
            )
        )
    shutil.rmtree(mine["one"])
    save_model(Path(mine["one"]), 77)
    outcome = run(context(tmp_path, fields))
    assert outcome.resumed_from is None
    fresh = run(context(tmp_path / "fresh", fields))
    assert outcome.outputs["model"].sha256 == fresh.outputs["model"].sha256


def test_a_finished_output_of_the_same_work_is_taken_as_it_is(family: dict[str, str], tmp_path: Path) -> None:
    first = run(context(tmp_path, {"recipe": recipe(family)}))
    again = run(context(tmp_path, {"recipe": recipe(family)}))
    assert again.metrics["adopted"] is True
    assert again.outputs == first.outputs


def test_an_output_of_other_work_is_refused_unless_forced(family: dict[str, str], tmp_path: Path) -> None:
    run(context(tmp_path, {"recipe": recipe(family)}))
    before = digest_folder(tmp_path / "out" / "model")
    with pytest.raises(BadInputError, match="exists already"):
        run(context(tmp_path, {"recipe": recipe(family)}, seed=9))
    assert digest_folder(tmp_path / "out" / "model") == before
    run(context(tmp_path, {"recipe": recipe(family), "force": True}, seed=9))
    assert digest_folder(tmp_path / "out" / "model") != before
    assert remains(tmp_path) == ["model"]


def test_a_damaged_output_is_not_taken_for_the_same_work(family: dict[str, str], tmp_path: Path) -> None:
    run(context(tmp_path, {"recipe": recipe(family)}))
    file = next((tmp_path / "out" / "model").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(BadInputError, match="exists already"):
        run(context(tmp_path, {"recipe": recipe(family)}))


def test_an_older_epoch_is_refused_and_publishes_nothing(family: dict[str, str], tmp_path: Path) -> None:
    newer = context(tmp_path, {"recipe": recipe(family)}, epoch=3)
    newer.checkpoints.claim()
    with pytest.raises(StaleEpochError, match="epoch 2 is over"):
        run(context(tmp_path, {"recipe": recipe(family)}, epoch=2))
    assert remains(tmp_path) == []


def test_a_newer_epoch_that_takes_over_meanwhile_keeps_the_old_one_from_publishing(
    family: dict[str, str], tmp_path: Path
) -> None:
    fields = {"recipe": recipe(family)}

    def overtaken(what: str, done: int, total: int) -> None:
        if done == 5:
            context(tmp_path, fields, epoch=2).checkpoints.claim()

    with pytest.raises(StaleEpochError):
        run(context(tmp_path, fields, epoch=1, progress=overtaken))
    assert "model" not in remains(tmp_path)


def test_two_writers_of_one_output_do_not_mix(family: dict[str, str], tmp_path: Path) -> None:
    fields = {"recipe": recipe(family)}
    errors: list[EngineError] = []

    def second(what: str, done: int, total: int) -> None:
        if done == 3:
            with pytest.raises(EngineError, match="being written by another process") as caught:
                run(context(tmp_path, fields))
            errors.append(caught.value)

    outcome = run(context(tmp_path, fields, progress=second))
    assert [error.code for error in errors] == ["busy"]
    assert outcome.outputs["model"].sha256 == digest_folder(tmp_path / "out" / "model")[0]


# Bad inputs that only the tensors show.


def spoil(folder: str, name: str, value: float) -> None:
    info = read_layout(Path(folder)).tensors[name]
    held = load_file(info.file)
    held[name].view(-1)[5] = value
    save_file(held, info.file, metadata={"format": "pt"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("method", ["linear", "ties", "dare_ties", "passthrough"])
def test_one_nan_in_one_input_names_model_and_tensor_and_leaves_nothing(
    family: dict[str, str], tmp_path: Path, value: float, method: str
) -> None:
    mine = {name: str(shutil.copytree(path, tmp_path / "in" / name)) for name, path in family.items()}
    name = "model.layers.1.mlp.up_proj.weight"
    spoil(mine["two"], name, value)
    wanted = recipe(mine, method)
    if method == "passthrough":
        wanted = {"merge_method": method, "models": [{"model": mine["two"]}]}
    with pytest.raises(BadInputError, match=f"{name}.* at element 5") as caught:
        run(context(tmp_path, {"recipe": wanted}))
    assert mine["two"] in caught.value.message
    assert caught.value.field == name
    assert remains(tmp_path) == []


def test_non_finite_inputs_can_be_allowed(family: dict[str, str], tmp_path: Path) -> None:
    mine = {name: str(shutil.copytree(path, tmp_path / "in" / name)) for name, path in family.items()}
    spoil(mine["two"], "lm_head.weight", float("nan"))
    run(context(tmp_path, {"recipe": recipe(mine, "linear"), "allow_nonfinite": True}))
    assert int(weights(tmp_path / "out" / "model")["lm_head.weight"].isnan().sum()) == 1


def test_large_finite_weights_are_not_taken_for_infinite(tmp_path: Path) -> None:
    save_model(tmp_path / "big", 0)
    spoil(str(tmp_path / "big"), "lm_head.weight", 3e38)
    held = read_layout(tmp_path / "big").tensors["lm_head.weight"]
    tensors = load_file(held.file)
    tensors["lm_head.weight"].view(-1)[:10] = 3e38  # their sum is infinite, they are not
    save_file(tensors, held.file, metadata={"format": "pt"})
    run(
        context(
            tmp_path,
            {"recipe": {"merge_method": "passthrough", "models": [{"model": str(tmp_path / "big")}]}},
        )
    )


def test_a_result_that_does_not_fit_its_type_is_refused(family: dict[str, str], tmp_path: Path) -> None:
    wanted = recipe(family, "linear", out_dtype="float16", parameters={"normalize": False})
    for model in wanted["models"]:
        model["parameters"]["weight"] = 1e7
    with pytest.raises(BadInputError, match="does not fit float16; set out_dtype: float32"):
        run(context(tmp_path, {"recipe": wanted}))
    assert remains(tmp_path) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, r"input\.recipe"),
        ({"recipe": 3}, r"input\.recipe"),
        ({"recipe": {}, "recipee": 1}, "did you mean 'recipe'"),
        ({"recipe": {}, "output_name": "../x"}, "plain folder name"),
        ({"recipe": {}, "output_name": "x" * 201}, r"input\.output_name: .* may have 200"),
        ({"recipe": {}, "force": "yes"}, r"input\.force"),
        ({"recipe": {}, "shard_bytes": 0}, r"input\.shard_bytes"),
    ],
)
def test_wrong_fields_are_refused_with_their_path(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        run(context(tmp_path, fields))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_only_looks_writable_is_refused_in_one_sentence() -> None:
    with (
        pytest.raises(BadInputError, match="cannot write to /proc"),
        OutputFolder(Path("/proc/no-such-folder/model"), "0").locked(),
    ):
        pass


def test_an_unwritable_folder_is_refused_before_the_work(family: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(BadInputError, match="cannot write to"):
        run(context(tmp_path, {"recipe": recipe(family)}))
