# ruff: noqa: TID253 - computes with torch; imported only by the llama backend and the demo's training
"""The forward pass of a plain Llama as one differentiable function of its state dict.

RMS norm: Zhang and Sennrich, 1910.07467. Rotary positions: Su et al., 2104.09864. Gated MLP: Shazeer,
2002.05202. Grouped queries: Ainslie et al., 2305.13245.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def refusal(config: Mapping[str, Any]) -> str | None:
    """Why this forward pass does not suit a config; None where it does."""
    if config.get("model_type") != "llama":
        return f"model_type '{config.get('model_type')}' is not llama"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (rope.get("rope_type") or rope.get("type") or "default") != "default":
        return "scaled rotary embeddings"
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        return "partial rotary embeddings"
    if config.get("hidden_act", "silu") != "silu":
        return f"activation {config['hidden_act']}"
    if config.get("attention_bias") or config.get("mlp_bias"):
        return "biases"
    if config.get("quantization_config"):
        return "quantised weights"
    return None


class LlamaForward:
    """The sizes of a Llama, and its forward pass over any weights of those sizes."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.layers = int(config["num_hidden_layers"])
        self.heads = int(config["num_attention_heads"])
        self.groups = int(config.get("num_key_value_heads") or self.heads)
        self.width = int(config["hidden_size"])
        self.inner = int(config["intermediate_size"])
        self.vocabulary = int(config["vocab_size"])
        self.head_size = int(config.get("head_dim") or self.width // self.heads)
        self.epsilon = float(config.get("rms_norm_eps", 1e-6))
        self.tied = bool(config.get("tie_word_embeddings", False))
        rope = config.get("rope_parameters") or {}
        self.theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None

    def shapes(self) -> dict[str, torch.Size]:
        """Name and shape of each tensor of the checkpoint."""
        queries, keys = self.heads * self.head_size, self.groups * self.head_size
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (self.vocabulary, self.width)}
        for number in range(self.layers):
            prefix = f"model.layers.{number}."
            shapes[prefix + "input_layernorm.weight"] = (self.width,)
            shapes[prefix + "self_attn.q_proj.weight"] = (queries, self.width)
            shapes[prefix + "self_attn.k_proj.weight"] = (keys, self.width)
            shapes[prefix + "self_attn.v_proj.weight"] = (keys, self.width)
            shapes[prefix + "self_attn.o_proj.weight"] = (self.width, queries)
            shapes[prefix + "post_attention_layernorm.weight"] = (self.width,)
            shapes[prefix + "mlp.gate_proj.weight"] = (self.inner, self.width)
            shapes[prefix + "mlp.up_proj.weight"] = (self.inner, self.width)
            shapes[prefix + "mlp.down_proj.weight"] = (self.width, self.inner)
        shapes["model.norm.weight"] = (self.width,)
        shapes[HEAD] = (self.vocabulary, self.width)
        return {name: torch.Size(shape) for name, shape in shapes.items()}

    def logits(self, weights: Mapping[str, torch.Tensor], ids: torch.Tensor, keep: int) -> torch.Tensor:
        """Logits [batch, keep, vocabulary] of the last ``keep`` positions of ids [batch, length].

        Attention is causal, so padding on the right needs no mask: no real token sees it.
        """
        length = ids.shape[1]
        hidden = embedding(ids, weights[EMBEDDING])
        cos, sin = self._rotation(length, hidden)
        for number in range(self.layers):
            wanted = keep if number == self.layers - 1 else length
            hidden = self._layer(weights, f"model.layers.{number}.", hidden, cos, sin, wanted)
        return linear(self._normalised(hidden, weights["model.norm.weight"]), weights[HEAD])

    def _layer(
        self,
        weights: Mapping[str, torch.Tensor],
        prefix: str,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keep: int,
    ) -> torch.Tensor:
        """One decoder layer; only the last ``keep`` positions come out (the last layer needs no others)."""
        batch, length, _ = hidden.shape
        first = length - keep
        normed = self._normalised(hidden, weights[prefix + "input_layernorm.weight"])
        queries = self._heads(linear(normed[:, first:], weights[prefix + "self_attn.q_proj.weight"]))
        keys = self._heads(linear(normed, weights[prefix + "self_attn.k_proj.weight"]))
        values = self._heads(linear(normed, weights[prefix + "self_attn.v_proj.weight"]))
        queries, keys = _rotated(queries, cos[first:], sin[first:]), _rotated(keys, cos, sin)
        seen = None
        if first:
            seen = torch.ones(length, length, dtype=torch.bool, device=hidden.device).tril()[first:]
        attended = scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, is_causal=not first, enable_gqa=self.groups != self.heads
        )
        mixed = attended.transpose(1, 2).reshape(batch, keep, self.heads * self.head_size)
        hidden = hidden[:, first:] + linear(mixed, weights[prefix + "self_attn.o_proj.weight"])
        normed = self._normalised(hidden, weights[prefix + "post_attention_layernorm.weight"])
        gate = silu(linear(normed, weights[prefix + "mlp.gate_proj.weight"]))
        inner = gate * linear(normed, weights[prefix + "mlp.up_proj.weight"])
        return hidden + linear(inner, weights[prefix + "mlp.down_proj.weight"])

    def _heads(self, tensor: torch.Tensor) -> torch.Tensor:
        batch, length, _ = tensor.shape
        return tensor.view(batch, length, -1, self.head_size).transpose(1, 2)

    def _normalised(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm; the mean square in float32 whatever the weights' type."""
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.epsilon)
        return weight * (wide * scale).to(hidden.dtype)

    def _rotation(self, length: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [length, head_size] of rotary positions; the sines' first half is negated."""
        known = self._angles
        if known is None or known[0].shape[0] < length or known[0].device != like.device:
            steps = torch.arange(0, self.head_size, 2, dtype=torch.float32, device=like.device)
            frequencies = self.theta ** (-steps / self.head_size)
            places = torch.arange(length, dtype=torch.float32, device=like.device)
            angles = torch.outer(places, frequencies)
            sines = angles.sin()
            known = self._angles = angles.cos().repeat(1, 2), torch.cat([-sines, sines], dim=1)
        return known[0][:length].to(like.dtype), known[1][:length].to(like.dtype)


def _rotated(tensor: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = tensor.shape[-1] // 2
    turned = torch.cat([tensor[..., half:], tensor[..., :half]], dim=-1)
    return tensor * cos + turned * sin
