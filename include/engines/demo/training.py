# ruff: noqa: TID253 - trains with torch; imported only by engines.demo.models, inside functions
"""Trains the demo's models: plain AdamW on the answer's cross-entropy, over the lean Llama forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from engines.demo.digits import IDS, VOCABULARY
from engines.inference.llama_forward import LlamaForward

State = dict[str, torch.Tensor]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "bos_token_id": IDS["<s>"],
    "eos_token_id": IDS["</s>"],
    "pad_token_id": IDS["<pad>"],
    "use_cache": True,
    "dtype": "float32",
}
"""152,256 parameters."""


@dataclass(frozen=True)
class Lesson:
    """What to train on, and how hard."""

    words: torch.Tensor
    """[example, 17] prompts."""
    labels: torch.Tensor
    """[example], 0..9."""
    epochs: int
    peak_rate: float
    """Highest learning rate: reached after 20 steps, then falling linearly."""


def initial_state(seed: int, config: dict[str, Any] = CONFIG) -> State:
    """Random weights: normal with the config's standard deviation, norms one."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in LlamaForward(config).shapes().items():
        if len(shape) == 1:
            state[name] = torch.ones(shape)
        else:
            state[name] = torch.randn(shape, generator=generator) * config["initializer_range"]
    return state


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside.

    These models are too small to share among threads, and their weights are then the same on any number of
    cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    start: State, lesson: Lesson, seed: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> State:
    """A copy of ``start`` after the lesson. ``progress(epoch, epochs)`` after each epoch."""
    model = LlamaForward(CONFIG)
    weights = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=lesson.peak_rate, weight_decay=0.01)
    batch = 64
    total = lesson.epochs * -(-len(lesson.words) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * max(0.02, 1 - step / total)
    )
    generator = torch.Generator().manual_seed(seed)
    answers = lesson.labels + IDS["d0"]
    # The answer goes in too, so that the model learns to end after it.
    inputs = torch.cat([lesson.words, answers[:, None]], dim=1)
    targets = torch.stack([answers, torch.full_like(answers, IDS["</s>"])], dim=1)
    for epoch in range(lesson.epochs):
        order = torch.randperm(len(inputs), generator=generator)
        for chosen in torch.split(order, batch):
            logits = model.logits(weights, inputs[chosen], 2)
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), targets[chosen].flatten(), reduction="none"
            ).view(-1, 2)
            loss = losses[:, 0].mean() + 0.05 * losses[:, 1].mean()
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        progress(epoch + 1, lesson.epochs)
    return {name: tensor.detach() for name, tensor in weights.items()}
