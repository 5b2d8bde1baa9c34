"""Merge methods a second time, straight from their formulas: whole tensors, float64, numpy, sorting.

Shares no code with the product; what it is compared with reads in chunks and selects without sorting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def linear(tensors: Sequence[Array], weights: Sequence[float], *, normalize: bool) -> Array:
    total = sum(w * t for w, t in zip(weights, tensors, strict=True))
    return np.asarray(total / sum(weights) if normalize else total)


def slerp(first: Array, second: Array, t: float) -> Array:
    a, b = first.ravel(), second.ravel()
    cosine = float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b))
    if abs(cosine) > 0.9995:
        return (1 - t) * first + t * second
    angle = np.arccos(cosine)
    return np.asarray((np.sin((1 - t) * angle) * first + np.sin(t * angle) * second) / np.sin(angle))


def task_arithmetic(
    base: Array, tensors: Sequence[Array], weights: Sequence[float], *, scale: float, normalize: bool
) -> Array:
    total = sum(w * (t - base) for w, t in zip(weights, tensors, strict=True))
    return np.asarray(base + scale * (total / sum(weights) if normalize else total))


def keep_top(delta: Array, density: float) -> Array:
    """The int(density * n) greatest magnitudes; of equal ones the first in index order."""
    flat = delta.ravel()
    count = flat.size if density >= 1 else max(1, int(density * flat.size)) if density > 0 else 0
    order = np.argsort(-np.abs(flat), kind="stable")
    result = np.zeros_like(flat)
    result[order[:count]] = flat[order[:count]]
    return result.reshape(delta.shape)


def elect(
    base: Array, deltas: Sequence[Array], weights: Sequence[float], *, scale: float, normalize: bool
) -> Array:
    weighted = np.stack([w * d for w, d in zip(weights, deltas, strict=True)])
    sign = np.where(weighted.sum(axis=0) >= 0, 1.0, -1.0)
    agree = np.sign(weighted) == sign
    mixed = np.where(agree, weighted, 0).sum(axis=0)
    if normalize:
        shape = (len(weights),) + (1,) * base.ndim
        divisor = np.where(agree, np.asarray(weights).reshape(shape), 0).sum(axis=0)
        mixed = mixed / np.where(np.abs(divisor) < 1e-8, 1, divisor)
    return np.asarray(base + scale * mixed)


def ties(
    base: Array,
    tensors: Sequence[Array],
    weights: Sequence[float],
    densities: Sequence[float],
    *,
    scale: float,
    normalize: bool,
) -> Array:
    deltas = [keep_top(t - base, d) for t, d in zip(tensors, densities, strict=True)]
    return elect(base, deltas, weights, scale=scale, normalize=normalize)
