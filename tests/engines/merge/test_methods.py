"""Every merge method against an independent float64 reference, on tensors that span several chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.builders import reference_merge as reference

from engines.merge.methods import METHODS
from engines.merge.methods.dare import RandomDrop
from engines.merge.methods.job import BLOCK, MethodInput, TensorJob


class Memory:
    """A tensor that methods read by range."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.flat = tensor.reshape(-1)

    def chunk(self, start: int, stop: int) -> torch.Tensor:
        return self.flat[start:stop].clone()


def tensors(count: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """A base and fine-tunes of it: a delta is small against the base, as in life."""
    generator = torch.Generator().manual_seed(7)
    base = torch.randn(shape, generator=generator, dtype=dtype)
    return [base, *(base + 0.05 * torch.randn(shape, generator=generator, dtype=dtype) for _ in range(count))]


def merged(
    name: str,
    base: torch.Tensor | None,
    inputs: Sequence[torch.Tensor],
    per_input: Sequence[dict[str, Any]],
    shared: dict[str, Any],
    *,
    chunk: int = BLOCK,
    seed: int = 0,
    tensor: str = "layer.weight",
) -> np.ndarray:
    method = METHODS[name]
    defaults = {entry.name: entry.default for entry in method.parameters}
    job = TensorJob(
        name=tensor,
        shape=tuple(inputs[0].shape),
        inputs=tuple(
            MethodInput(f"m{i}", Memory(data), {**defaults, **own})
            for i, (data, own) in enumerate(zip(inputs, per_input, strict=True))
        ),
        base=None if base is None else MethodInput("base", Memory(base)),
        parameters={**defaults, **shared},
        seed=seed,
        chunk_elements=chunk,
    )
    return torch.cat(list(method.load()(job))).reshape(inputs[0].shape).numpy().astype(np.float64)


def double(items: Sequence[torch.Tensor]) -> list[np.ndarray]:
    return [item.numpy().astype(np.float64) for item in items]


SHAPE = (300, 701)  # three blocks and a rest that is no multiple of any row
WEIGHTS = [0.7, -0.3, 0.5]
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.mark.parametrize("normalize", [True, False])
def test_linear_is_the_weighted_average(normalize: bool) -> None:
    inputs = tensors(2, SHAPE)
    found = merged("linear", None, inputs, [{"weight": w} for w in WEIGHTS], {"normalize": normalize})
    np.testing.assert_allclose(found, reference.linear(double(inputs), WEIGHTS, normalize=normalize), **CLOSE)


@pytest.mark.parametrize("t", [0.0, 0.3, 0.5, 1.0, 1.2])
def test_slerp_follows_the_great_circle(t: float) -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(SHAPE, generator=generator), torch.randn(SHAPE, generator=generator)
    found = merged("slerp", first, [second], [{}], {"t": t})
    np.testing.assert_allclose(found, reference.slerp(*double([first, second]), t), **CLOSE)


def test_slerp_of_parallel_tensors_is_linear() -> None:
    first = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    found = merged("slerp", first, [first * 3], [{}], {"t": 0.25})
    np.testing.assert_allclose(found, double([first * 1.5])[0], **CLOSE)


def test_slerp_with_a_zero_tensor_is_linear_and_finite() -> None:
    other = torch.ones(5)
    np.testing.assert_allclose(merged("slerp", torch.zeros(5), [other], [{}], {"t": 0.25}), 0.25 * np.ones(5))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_task_arithmetic_adds_weighted_task_vectors(normalize: bool, scale: float) -> None:
    base, *inputs = tensors(3, SHAPE)
    shared = {"normalize": normalize, "lambda": scale}
    found = merged("task_arithmetic", base, inputs, [{"weight": w} for w in WEIGHTS], shared)
    wanted = reference.task_arithmetic(
        *double([base]), double(inputs), WEIGHTS, scale=scale, normalize=normalize
    )
    np.testing.assert_allclose(found, wanted, **CLOSE)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("densities", [(0.2, 0.5, 1.0), (0.001, 0.9, 0.0), (1.0, 1.0, 1.0), (1e-9, 0.3, 0.3)])
def test_ties_trims_elects_and_merges(normalize: bool, densities: tuple[float, ...]) -> None:
    base, *inputs = tensors(3, SHAPE)
    own = [{"weight": w, "density": d} for w, d in zip(WEIGHTS, densities, strict=True)]
    found = merged("ties", base, inputs, own, {"normalize": normalize, "lambda": 0.8})
    # The thresholds are those of the float32 task vectors, which is what the method sees.
    deltas = [
        reference.keep_top((item - base).numpy().astype(np.float64), d)
        for item, d in zip(inputs, densities, strict=True)
    ]
    wanted = reference.elect(*double([base]), deltas, WEIGHTS, scale=0.8, normalize=normalize)
    np.testing.assert_allclose(found, wanted, **CLOSE)


def test_ties_keeps_exactly_the_wanted_number_among_equal_magnitudes() -> None:
    base = torch.zeros(3 * BLOCK)
    delta = torch.ones(3 * BLOCK)
    delta[BLOCK : BLOCK + 10] = 2.0
    found = merged("ties", base, [delta], [{"weight": 1.0, "density": 0.5}], {})
    assert np.count_nonzero(found) == int(0.5 * delta.numel())
    np.testing.assert_allclose(found, reference.keep_top(delta.numpy().astype(np.float64), 0.5))


def test_ties_in_float64_selects_on_all_63_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    base = torch.zeros(20_000, dtype=torch.float64)
    # Magnitudes that are equal in float32 and differ in float64 only.
    delta = 1.0 + 1e-12 * torch.randperm(20_000, generator=generator).double()
    found = merged("ties", base, [delta], [{"weight": 1.0, "density": 0.25}], {})
    np.testing.assert_array_equal(found, reference.keep_top(delta.numpy(), 0.25))


def test_ties_with_rescale_keeps_the_l1_norm() -> None:
    base, one = tensors(1, SHAPE)
    found = merged("ties", base, [one], [{"weight": 1.0, "density": 0.3}], {"rescale": True})
    delta = (one - base).double().abs().sum().item()
    assert np.abs(found - base.numpy()).sum() == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("name", ["dare_linear", "dare_ties"])
@pytest.mark.parametrize("rescale", [True, False])
def test_dare_drops_at_random_and_matches_the_l1_norm(name: str, rescale: bool) -> None:
    base, *inputs = tensors(3, SHAPE)
    densities = (0.3, 1.0, 0.7)
    own = [{"weight": w, "density": d} for w, d in zip(WEIGHTS, densities, strict=True)]
    found = merged(name, base, inputs, own, {"rescale": rescale, "lambda": 0.9}, seed=11)
    job_seed = TensorJob("layer.weight", SHAPE, (), None, {}, 11, BLOCK).tensor_seed
    thinned = []
    for index, (item, density) in enumerate(zip(inputs, densities, strict=True)):
        delta = (item - base).numpy().astype(np.float64)
        if density < 1:
            mask = RandomDrop(density, job_seed(index)).mask(0, delta.size).reshape(SHAPE)
            kept = delta * mask
            delta = kept * (np.abs(delta).sum() / np.abs(kept).sum()) if rescale else kept
        thinned.append(delta)
    if name == "dare_ties":
        wanted = reference.elect(*double([base]), thinned, WEIGHTS, scale=0.9, normalize=False)
    else:
        wanted = base.numpy() + 0.9 * sum(w * d for w, d in zip(WEIGHTS, thinned, strict=True))
    np.testing.assert_allclose(found, wanted, **CLOSE)


@pytest.mark.parametrize("density", [0.05, 0.5, 0.93])
def test_a_dare_mask_keeps_its_share_without_pattern(density: float) -> None:
    count = 40 * BLOCK
    mask = RandomDrop(density, 2**100 + 5).mask(0, count).astype(float)
    spread = np.sqrt(density * (1 - density) / count)
    assert abs(mask.mean() - density) < 5 * spread
    by_block = mask.reshape(40, BLOCK).mean(axis=1)
    assert np.abs(by_block - density).max() < 6 * np.sqrt(density * (1 - density) / BLOCK)
    # Neighbours, and the same place in two blocks, are independent: correlation below five standard errors.
    assert abs(np.corrcoef(mask[:-1], mask[1:])[0, 1]) < 5 / np.sqrt(count)
    assert abs(np.corrcoef(mask[:BLOCK], mask[BLOCK : 2 * BLOCK])[0, 1]) < 5 / np.sqrt(BLOCK)


def test_dare_masks_differ_by_tensor_input_and_seed() -> None:
    base = torch.zeros(4096)
    one = torch.ones(4096)
    own, shared = [{"weight": 1.0, "density": 0.5}], {"rescale": False}
    plain = merged("dare_linear", base, [one], own, shared, seed=1)
    again = merged("dare_linear", base, [one], own, shared, seed=1)
    np.testing.assert_array_equal(plain, again)
    assert not np.array_equal(plain, merged("dare_linear", base, [one], own, shared, seed=2))
    assert not np.array_equal(plain, merged("dare_linear", base, [one], own, shared, seed=1, tensor="other"))
    two = merged("dare_linear", base, [one, one], own * 2, shared, seed=1)
    assert set(np.unique(two)) == {0.0, 1.0, 2.0}


def test_passthrough_scales_only_where_told() -> None:
    (one,) = tensors(0, (50, 3))
    np.testing.assert_array_equal(merged("passthrough", None, [one], [{"scale": None}], {}), double([one])[0])
    np.testing.assert_allclose(
        merged("passthrough", None, [one], [{"scale": -0.5}], {}), double([one * -0.5])[0], **CLOSE
    )


def everything(chunk: int) -> Iterator[np.ndarray]:
    base, *inputs = tensors(2, (5, BLOCK // 3))
    own = [{"weight": 0.6, "density": 0.37}, {"weight": 0.5, "density": 0.81}]
    for name in ("task_arithmetic", "ties", "dare_linear", "dare_ties"):
        yield merged(name, base, inputs, own, {"rescale": True}, chunk=chunk, seed=5)
    yield merged("slerp", base, inputs[:1], [{}], {"t": 0.4}, chunk=chunk)
    yield merged("linear", None, inputs, own, {}, chunk=chunk)


@pytest.mark.parametrize("threads", [1, 2])
def test_no_result_depends_on_the_chunk_size_or_the_threads(threads: int) -> None:
    before = torch.get_num_threads()
    wanted = list(everything(BLOCK))
    try:
        torch.set_num_threads(threads)
        for chunk in (BLOCK, 2 * BLOCK, 64 * BLOCK):
            for found, expected in zip(everything(chunk), wanted, strict=True):
                np.testing.assert_array_equal(found, expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_an_empty_tensor_merges_to_an_empty_tensor(name: str) -> None:
    empty = torch.empty(0, 4)
    method = METHODS[name]
    base = empty if method.base.value == "required" else None
    own = {"weight": 1.0, "density": 0.5, "scale": 2.0}
    count = 1 if name in {"slerp", "passthrough"} else 2
    job = TensorJob(
        "t",
        (0, 4),
        tuple(MethodInput(f"m{i}", Memory(empty), own) for i in range(count)),
        None if base is None else MethodInput("b", Memory(base)),
        {"normalize": False, "lambda": 1.0, "rescale": True, "t": 0.5},
        0,
        BLOCK,
    )
    assert list(method.load()(job)) == []
