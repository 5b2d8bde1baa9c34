"""The backends on tiny real checkpoints, held to plain transformers calls on one sequence at a time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.builders.tiny_checkpoints import TEXT, write_gpt2, write_llama

from engines.contract import BadInputError
from engines.inference.backend import BackendOptions, Generation, Request
from engines.inference.checkpoints import read_state
from engines.inference.opening import open_backend


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt2(tmp_path_factory.mktemp("models") / "gpt2")


def requests(count: int = 40, longest: int = 30) -> list[Request]:
    generator = random.Random(5)
    made = []
    for _ in range(count):
        tokens = [generator.randrange(3, 280) for _ in range(generator.randint(4, longest))]
        cut = generator.randint(1, len(tokens) - 1)
        made.append(Request(tuple(tokens[:cut]), tuple(tokens[cut:])))
    # Choices of one token after a shared context, as multiple choice asks them.
    return made + [Request(made[0].context, (token,)) for token in range(10, 20)]


def plain_scores(folder: Path, asked: list[Request]) -> list[tuple[float, bool]]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    scores = []
    for request in asked:
        ids = torch.tensor([request.context + request.continuation])
        with torch.no_grad():
            logs = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
        places = range(len(request.context) - 1, ids.shape[1] - 1)
        picked = [(place, token) for place, token in zip(places, request.continuation, strict=True)]
        scores.append(
            (
                sum(logs[place, token].item() for place, token in picked),
                all(int(logs[place].argmax()) == token for place, token in picked),
            )
        )
    return scores


@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_loglikelihood_is_what_the_model_says_of_each_sequence_alone(
    llama: Path, kind: str, batch_size: int
) -> None:
    asked = requests()
    backend = open_backend(llama, BackendOptions(device="cpu", batch_size=batch_size), kind=kind)
    for score, (logprob, greedy) in zip(
        backend.loglikelihood(asked), plain_scores(llama, asked), strict=True
    ):
        assert score.logprob == pytest.approx(logprob, abs=2e-4)
        assert score.greedy == greedy


@pytest.mark.parametrize("batch_size", [1, 7])
def test_models_with_learned_positions_are_scored_right_in_padded_batches(
    gpt2: Path, batch_size: int
) -> None:
    asked = requests()
    backend = open_backend(gpt2, BackendOptions(device="cpu", batch_size=batch_size), kind="auto")
    assert backend.name == "transformers"
    for score, (logprob, greedy) in zip(backend.loglikelihood(asked), plain_scores(gpt2, asked), strict=True):
        assert score.logprob == pytest.approx(logprob, abs=2e-4)
        assert score.greedy == greedy


def test_a_greedy_continuation_is_recognised_as_greedy(llama: Path) -> None:
    backend = open_backend(llama, BackendOptions(device="cpu"), kind="llama")
    best = max(range(3, 280), key=lambda token: backend.loglikelihood([Request((5, 6), (token,))])[0].logprob)
    assert backend.loglikelihood([Request((5, 6), (best,))])[0].greedy


def test_both_backends_agree_on_variants_of_llama(tmp_path: Path) -> None:
    variants: dict[str, dict[str, Any]] = {
        "tied": {"tie_word_embeddings": True},
        "wide-heads": {"head_dim": 16},
        "other-base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        "ungrouped": {"num_key_value_heads": 4, "rms_norm_eps": 1e-3},
    }
    for number, (name, changes) in enumerate(variants.items()):
        folder = write_llama(tmp_path / name, seed=number, **changes)
        asked = requests(12)
        lean = open_backend(folder, BackendOptions(device="cpu"), kind="llama").loglikelihood(asked)
        for score, (logprob, _) in zip(lean, plain_scores(folder, asked), strict=True):
            assert score.logprob == pytest.approx(logprob, abs=2e-4), name


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"attention_bias": True}, "biases"),
        (
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "factor": 2.0,
                    "rope_theta": 10000.0,
                }
            },
            "rotary",
        ),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
)
def test_the_lean_backend_leaves_what_it_cannot_run_to_transformers(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    folder = write_llama(tmp_path / "model", **changes)
    assert open_backend(folder, BackendOptions(device="cpu"), kind="auto").name == "transformers"
    with pytest.raises(BadInputError, match=word):
        open_backend(folder, BackendOptions(device="cpu"), kind="llama")


@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_a_rolling_score_covers_every_token_of_a_text_longer_than_the_model(llama: Path, kind: str) -> None:
    backend = open_backend(llama, BackendOptions(device="cpu", batch_size=2), kind=kind)
    short, long = backend.encode_texts(["A merge of models.", TEXT])
    assert len(short) < 48 < len(long)
    whole = plain_scores(llama, [Request((1,), short)])[0][0]
    windows = [Request((1,), long[:48])]
    done = 48
    while done < len(long):
        count = min(48, len(long) - done)
        end = done + count
        windows.append(Request(long[end - 49 : done], long[done:end]))
        done = end
    parts = sum(score for score, _ in plain_scores(llama, windows))
    assert backend.loglikelihood_rolling([short, long]) == pytest.approx([whole, parts], abs=1e-2)


@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_swapped_weights_score_like_the_checkpoint_they_came_from(
    tmp_path: Path, llama: Path, kind: str
) -> None:
    other = write_llama(tmp_path / "other", seed=9)
    asked = requests(10)
    backend = open_backend(llama, BackendOptions(device="cpu"), kind=kind)
    first = backend.loglikelihood(asked)
    backend.load_state(read_state(other))
    swapped = [score.logprob for score in backend.loglikelihood(asked)]
    assert swapped == pytest.approx([score for score, _ in plain_scores(other, asked)], abs=2e-4)
    backend.load_state(read_state(llama))
    assert [s.logprob for s in backend.loglikelihood(asked)] == pytest.approx(
        [s.logprob for s in first], abs=1e-5
    )


@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_weights_in_memory_need_no_weights_on_disk(tmp_path: Path, llama: Path, kind: str) -> None:
    state = read_state(llama)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((llama / name).read_bytes())
    asked = requests(5)
    backend = open_backend(bare, BackendOptions(device="cpu"), kind=kind, state=state)
    expected = [score for score, _ in plain_scores(llama, asked)]
    assert [score.logprob for score in backend.loglikelihood(asked)] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_wrong_weights_are_refused_by_the_tensor_s_name(llama: Path, kind: str) -> None:
    backend = open_backend(llama, BackendOptions(device="cpu"), kind=kind)
    state = read_state(llama)
    missing = {name: tensor for name, tensor in state.items() if name != "model.norm.weight"}
    with pytest.raises(BadInputError, match=r"model\.norm\.weight is missing"):
        backend.load_state(missing)
    with pytest.raises(BadInputError, match="has no tensor extra"):
        backend.load_state({**state, "extra": torch.zeros(1)})
    with pytest.raises(BadInputError, match=r"model\.norm\.weight has shape"):
        backend.load_state({**state, "model.norm.weight": torch.zeros(3)})


def plain_generation(folder: Path, context: tuple[int, ...], count: int) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids = model.generate(
        torch.tensor([context]),
        attention_mask=torch.ones(1, len(context), dtype=torch.long),
        do_sample=False,
        max_new_tokens=count,
        pad_token_id=0,
    )
    return str(tokenizer.decode(ids[0, len(context) :], skip_special_tokens=True))


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_greedy_generation_is_that_of_transformers(llama: Path, kind: str, batch_size: int) -> None:
    backend = open_backend(llama, BackendOptions(device="cpu", batch_size=batch_size), kind=kind)
    contexts = [request.context for request in requests(6, longest=12)]
    texts = backend.generate([Generation(context, max_new_tokens=8) for context in contexts])
    assert texts == [plain_generation(llama, context, 8) for context in contexts]


@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_generation_ends_before_the_first_stop_text(llama: Path, kind: str) -> None:
    backend = open_backend(llama, BackendOptions(device="cpu"), kind=kind)
    context = (20, 30, 40)
    whole = backend.generate([Generation(context, max_new_tokens=10)])[0]
    assert len(whole) > 2
    stop = whole[2:4]
    cut = backend.generate([Generation(context, max_new_tokens=10, stop=(stop,))])[0]
    assert cut == whole[: whole.index(stop)]


@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_drawn_tokens_depend_on_the_seed_and_not_on_the_batch(llama: Path, kind: str) -> None:
    backend = open_backend(llama, BackendOptions(device="cpu"), kind=kind)
    asked = [Generation((20, 30 + n), max_new_tokens=6, temperature=1.0, seed=n) for n in range(4)]
    together = backend.generate(asked)
    assert together == [backend.generate([entry])[0] for entry in asked]
    other = backend.generate([Generation((20, 30), max_new_tokens=6, temperature=1.0, seed=77)])
    assert other[0] != together[0]


def test_a_context_that_is_too_long_is_cut_on_the_left_and_counted(llama: Path) -> None:
    backend = open_backend(llama, BackendOptions(device="cpu"), kind="llama")
    tokens = tuple(range(10, 80))
    found = backend.loglikelihood([Request(tokens[:-2], tokens[-2:])])[0]
    kept = Request(tokens[-49:-2], tokens[-2:])
    assert found.logprob == pytest.approx(plain_scores(llama, [kept])[0][0], abs=2e-4)
    assert backend.describe()["truncated"] == 1


def test_what_scores_depend_on_is_described(llama: Path) -> None:
    backend = open_backend(llama, BackendOptions(device="cpu", dtype="bfloat16", batch_size=5))
    backend.loglikelihood([Request((4, 5), (6,))])
    found = backend.describe()
    assert found["backend"] == "transformers"
    assert found["dtype"] == "bfloat16"
    assert found["batch_size"] == 5
    assert found["bos_added"] is False
    assert found["first_prompt_ids"] == [4, 5]
    assert found["transformers"]
    assert "batch_size" not in backend.identity()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "model.safetensors").unlink(), "missing"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"abc"), "model.safetensors"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer"),
    ],
)
@pytest.mark.parametrize("kind", ["transformers", "llama"])
def test_a_broken_checkpoint_is_refused_in_one_sentence(
    tmp_path: Path, kind: str, break_it: Any, message: str
) -> None:
    folder = write_llama(tmp_path / "model")
    break_it(folder)
    with pytest.raises(BadInputError, match=message) as caught:
        open_backend(folder, BackendOptions(device="cpu"), kind=kind)
    assert str(folder) in caught.value.message
    assert "\n" not in caught.value.message


def test_transformers_never_fills_missing_weights_with_random_numbers(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = write_llama(tmp_path / "model")
    state = read_state(folder)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInputError, match=r"model.layers.1.mlp.up_proj.weight"):
        open_backend(folder, BackendOptions(device="cpu"))


@pytest.mark.parametrize(
    ("options", "kind", "field"),
    [
        (BackendOptions(device="gpu"), "llama", "device"),
        (BackendOptions(device="cpu", dtype="int8"), "llama", "dtype"),
        (BackendOptions(device="cpu", batch_size=0), "llama", "batch_size"),
        (BackendOptions(device="cpu", bos="yes"), "llama", "bos"),
        (BackendOptions(device="cpu"), "vllm", "backend"),
    ],
)
def test_wrong_options_are_refused_by_name(
    llama: Path, options: BackendOptions, kind: str, field: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        open_backend(llama, options, kind=kind)
    assert caught.value.field == field
