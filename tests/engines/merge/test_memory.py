"""Peak memory does not grow with model, tensor or shard size: measured on processes of their own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from engines.tensor.dtypes import BY_NAME
from engines.tensor.writer import ShardedWriter, TensorSpec

SMALL, LARGE = 1 << 20, 40 << 20
"""Elements of the one tensor: 2 MB and 80 MB a model."""
ALLOWED = 24 << 20
"""Bytes that the larger merge may take more: allocators round, histories of sums are kept.

One tensor has 80 MB.
"""


def make_model(folder: Path, elements: int, seed: int) -> None:
    spec = TensorSpec("model.embed_tokens.weight", BY_NAME["bfloat16"], (elements // 64, 64))
    writer = ShardedWriter(folder, [spec])
    piece = torch.randn(1 << 20, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    for _ in range(elements >> 20):
        writer.write(piece)
    writer.end_tensor()
    writer.finish()
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 0})
    )


def peak(folder: Path, method: str) -> int:
    models = [str(folder / name) for name in ("base", "one", "two")]
    own = {"linear": {"weight": 0.5}, "slerp": {}}.get(method, {"weight": 0.5, "density": 0.4})
    chosen = models[1:] if method != "slerp" else models[1:2]
    recipe = {
        "merge_method": method,
        "base_model": models[0],
        "models": [{"model": model, "parameters": own} for model in chosen],
        "parameters": {"t": 0.5} if method == "slerp" else {"normalize": True},
    }
    (folder / "r.yaml").write_text(json.dumps(recipe))
    out = folder / f"out-{method}"
    arguments = [sys.executable, "-m", "engines.cli", "merge", str(folder / "r.yaml"), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = os.posix_spawn(sys.executable, arguments, environment)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    assert (out / "model.safetensors").stat().st_size > 1 << 20
    return usage.ru_maxrss * 1024


@pytest.mark.parametrize("method", ["linear", "ties"])
def test_a_tensor_40_times_as_large_takes_no_more_memory(tmp_path: Path, method: str) -> None:
    peaks = []
    for name, elements in (("small", SMALL), ("large", LARGE)):
        for seed, model in enumerate(("base", "one", "two")):
            make_model(tmp_path / name / model, elements, seed)
        peaks.append(peak(tmp_path / name, method))
    assert peaks[1] - peaks[0] < ALLOWED
