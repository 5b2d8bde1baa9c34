"""How fast and in how much memory 0.5B parameters (988 MB bfloat16) merge, beside the machine's own limit.

    python tests/benchmarks/merge/bench_merge.py FOLDER [METHOD ...]

FOLDER keeps the three inputs between runs (3 GB) and takes one output at a time (1 GB). The limit is measured
in the same run: the bytes of all inputs read once at the rate at which a warm file is read, and the bytes of
the output written at the rate at which a file of that size is written, without arithmetic.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch

from engines.tensor.dtypes import BY_NAME
from engines.tensor.writer import ShardedWriter, TensorSpec

WIDTH, INNER, LAYERS, VOCABULARY, KEYS = 896, 4864, 24, 151_936, 128
METHODS = ("linear", "slerp", "task_arithmetic", "dare_linear", "dare_ties", "ties")
INPUTS = {"linear": 2, "slerp": 2}
PIECE = 1 << 22


def shapes() -> dict[str, tuple[int, ...]]:
    """Tensors of a 0.5B model with tied embeddings."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        for name, shape in {
            "input_layernorm": (WIDTH,),
            "mlp.down_proj": (WIDTH, INNER),
            "mlp.gate_proj": (INNER, WIDTH),
            "mlp.up_proj": (INNER, WIDTH),
            "post_attention_layernorm": (WIDTH,),
            "self_attn.k_proj": (KEYS, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.v_proj": (KEYS, WIDTH),
        }.items():
            found[f"model.layers.{layer}.{name}.weight"] = shape
    found["model.norm.weight"] = (WIDTH,)
    return found


def make_inputs(folder: Path) -> list[Path]:
    """A base and two fine-tunes: weights of a model's size, deltas a twentieth of them."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    models = [folder / name for name in ("base", "one", "two")]
    for number, model in enumerate(models):
        if (model / "config.json").exists():
            continue
        specs = [TensorSpec(name, BY_NAME["bfloat16"], shape) for name, shape in shapes().items()]
        writer = ShardedWriter(model, specs, shard_bytes=500_000_000)
        for index, spec in enumerate(specs):
            count = spec.nbytes // 2
            base, delta = (
                torch.Generator().manual_seed(index),
                torch.Generator().manual_seed(1000 * number + index),
            )
            for start in range(0, count, PIECE):
                piece = torch.randn(min(PIECE, count - start), generator=base) * 0.02
                if number:
                    piece += torch.randn(piece.numel(), generator=delta) * 0.001
                writer.write(piece.to(torch.bfloat16))
            writer.end_tensor()
        writer.finish()
        writer.close()
        (model / "config.json").write_text(json.dumps(config))
    return models


def limit(models: list[Path], output_bytes: int, folder: Path) -> float:
    """Seconds to read the models (warm) and to write a file of the output's size."""
    buffer = bytearray(1 << 20)
    started = time.perf_counter()
    for model in models:
        for path in sorted(model.glob("*.safetensors")):
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    target = folder / "limit.bin"
    with target.open("wb", buffering=0) as file:
        for _ in range(0, output_bytes, len(buffer)):
            file.write(buffer)
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


def recipe(method: str, models: list[Path]) -> dict[str, object]:
    """A usual recipe of the method."""
    base, *tuned = models
    if method == "linear":
        entries = [{"model": str(model), "parameters": {"weight": 0.5}} for model in tuned]
        return {"merge_method": method, "models": entries, "dtype": "bfloat16"}
    if method == "slerp":
        entries = [{"model": str(model)} for model in tuned]
        return {
            "merge_method": method,
            "base_model": str(tuned[0]),
            "models": entries,
            "parameters": {"t": 0.4},
            "dtype": "bfloat16",
        }
    own = {"weight": 0.5} if method == "task_arithmetic" else {"weight": 0.5, "density": 0.5}
    entries = [{"model": str(model), "parameters": own} for model in tuned]
    return {"merge_method": method, "base_model": str(base), "models": entries, "dtype": "bfloat16"}


def measure(method: str, models: list[Path], folder: Path) -> dict[str, float]:
    """Wall and CPU seconds and peak memory of ``emep-engine merge`` in a process of its own."""
    config, out = folder / f"{method}.yaml", folder / "out"
    config.write_text(json.dumps(recipe(method, models)), encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    arguments = [sys.executable, "-m", "engines.cli", "merge", str(config), str(out)]
    started = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        arguments,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"{method} failed: wait status {status}")
    shutil.rmtree(out)
    return {"wall": seconds, "cpu": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024}


def main() -> None:
    """Print one line per method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parsed = parser.parse_args()
    parsed.folder.mkdir(parents=True, exist_ok=True)
    models = make_inputs(parsed.folder)
    size = sum(path.stat().st_size for path in models[0].glob("*.safetensors"))
    print(f"{size / 1e6:.0f} MB a model; {torch.get_num_threads()} threads; torch {torch.__version__}")
    for method in parsed.methods:
        read = models[-INPUTS.get(method, 3) :]
        least = limit(read, size, parsed.folder)
        found = measure(method, models, parsed.folder)
        print(
            f"{method:16} wall {found['wall']:6.1f} s  cpu {found['cpu']:6.1f} s  "
            f"peak {found['peak_mb']:5.0f} MB  limit {least:4.2f} s  ratio {found['wall'] / least:5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
