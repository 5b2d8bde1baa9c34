"""The fields of a config that change the meaning of weights, and their defaults where a config has none.

Two models of equal shapes can compute with them in different ways: the same 64 columns are 4 heads of 16 or
8 of 8, positions turn by another angle, a norm adds another epsilon. An average of such models is noise.
Fields that only say how a model is used (token ids, dropout, the longest text) do not matter here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engines.merge.rotary import rotary_values

ANY = "not stated"
"""The value of a field that a config does not state and whose default depends on the model's code, or that
only says again what others say (``layer_types``): it agrees with all.
"""
DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers", "decoder_layers")
"""Numbers of layers; they matter where whole models are merged, not where slices are stacked."""


@dataclass(frozen=True)
class Field:
    """A field under the names that architectures give it, and its value where a config is silent."""

    names: tuple[str, ...]
    default: Any | Callable[[Mapping[str, Any]], Any] = None

    def of(self, config: Mapping[str, Any]) -> tuple[str, Any]:
        """The name that the config uses (else the first) and the value."""
        for name in self.names:
            if config.get(name) is not None:
                return name, config[name]
        return self.names[0], self.default(config) if callable(self.default) else self.default


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _key_heads(config: Mapping[str, Any]) -> Any:
    """Heads of keys: as many as of queries, one where the model says that all share one."""
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        return 1
    return _first(config, *_HEADS)


def _head_dim(config: Mapping[str, Any]) -> Any:
    size, heads = _first(config, "hidden_size", "n_embd", "d_model"), _first(config, *_HEADS)
    return size // heads if size and heads else ANY


_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_EPSILONS = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "norm_eps",
    "norm_epsilon",
)
_ABSENT = (
    "attention_bias",
    "mlp_bias",
    "qkv_bias",
    "use_bias",
    "attention_out_bias",
    "alibi",
    "use_alibi",
    "parallel_attn",
    "new_decoder_architecture",
    "apply_residual_connection_post_layernorm",
    "qk_layernorm",
    "clip_qkv",
    "scale_attn_by_inverse_layer_idx",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
"""What a silent config does not have, in every architecture that knows the field."""
_FACTORS = (
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
    "lm_head_multiplier",
)
"""1 where a config is silent."""
_STATED = (
    # The block's wiring.
    "encoder_layers",
    "num_encoder_layers",
    "use_parallel_residual",
    "do_layer_norm_before",
    "norm_after",
    "use_qk_norm",
    "qk_norm",
    # Positions.
    "position_embedding_type",
    "sliding_window_pattern",
    "attention_chunk_size",
    # Factors.
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "scale_emb",
    "scale_depth",
    "dim_model_base",
    "scale_attn_weights",
    "scale_embedding",
    "swiglu_limit",
    # Experts.
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_top_k",
    "moe_topk",
    "norm_topk_prob",
    "n_group",
    "topk_group",
    "scoring_func",
    "topk_method",
    "routed_scaling_factor",
    "first_k_dense_replace",
    "moe_layer_freq",
    "decoder_sparse_step",
    # States.
    "ssm_state_size",
    "state_size",
    "conv_kernel",
    "mamba_d_state",
)
"""Compared where both configs state them: each architecture has a default of its own."""
BY_LAYER = ("layer_types", "no_rope_layers", "mlp_only_layers")
"""Lists about layers; slices take each layer's entry from its own model."""
_DERIVED = (
    Field(("num_key_value_heads", "num_kv_heads", "n_head_kv"), _key_heads),
    Field(("head_dim", "attention_head_dim", "d_kv", "kv_channels"), _head_dim),
)
_FIELDS = (
    Field(_HEADS, ANY),
    *_DERIVED,
    Field(_EPSILONS, ANY),
    *(Field((name,), False) for name in _ABSENT),
    *(Field((name,), 1.0) for name in _FACTORS),
    *(Field((name,), ANY) for name in _STATED),
)
_ACTIVATION_NAMES = (
    "activation_function",
    "hidden_activation",
    "hidden_act",
    "mlp_hidden_act",
    "feed_forward_proj",
    "activation",
)
_ACTIVATIONS = {"swish": "silu", "gelu_new": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh"}
"""Names of one function."""
_HARMLESS = re.compile(
    r"^_|_token(_id)?s?$|token_id|dropout|_drop$|pdrop|initializer|init_|_range$|^output_|^return_|^use_cache$"
    r"|^(torch_)?dtype$|^transformers_version$|^vocab_size|^max_position|^n_positions$|^n_ctx$|^max_seq"
    r"|^model_max_length$|^pretraining_tp$|^auto_map$|attn_implementation|^id2label$|^label2id$"
    r"|^num_labels$|^problem_type$|^task_specific|^summary_|^router_(aux|jitter)|aux_loss|^unsloth|^architectures$"
    r"|gradient_checkpointing|^tokenizer_class$|^is_(decoder|encoder)|^chunk_size_feed|^model_type$|_config$"
    r"|^tie_|^seq_length$|^training|^name$|^rope_|^rotary_|^partial_rotary"
)
_WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers")
"""What attention sees of a long text; within the window nothing changes, so these are only warned of."""
KNOWN = frozenset(
    {name for field in _FIELDS for name in field.names}
    | {*DEPTH, *BY_LAYER, *_ACTIVATION_NAMES, *_WINDOWS, "model_type"}
    | {"rope_theta", "rope_scaling", "rope_parameters", "rotary_emb_base"}
)
"""Every name under which a difference may be allowed."""


def meaning(config: Mapping[str, Any], *, depth: bool) -> dict[str, tuple[str, Any]]:
    """What a config, or a part of one, says about its weights.

    The result has a key to compare by, with the config's own name for it and its value. ``depth``: include
    the number of layers and the kind of each.
    """
    found = {field.names[0]: field.of(config) for field in _FIELDS}
    found["hidden_act"] = _activation(config)
    found["model_type"] = ("model_type", config.get("model_type") or ANY)
    if depth:
        found["num_hidden_layers"] = Field(DEPTH[:4], ANY).of(config)
        found["num_decoder_layers"] = Field(DEPTH[4:], ANY).of(config)
        found |= {name: Field((name,), ANY).of(config) for name in BY_LAYER}
    return found | rotary_values(config)


def _activation(config: Mapping[str, Any]) -> tuple[str, Any]:
    if str(config.get("model_type", "")).startswith("gemma"):  # its code ignores hidden_act
        return "hidden_activation", config.get("hidden_activation") or "gelu_pytorch_tanh"
    name, value = Field(_ACTIVATION_NAMES, ANY).of(config)
    return name, _ACTIVATIONS.get(str(value), value)


def only_follows(key: str, mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a difference in ``key`` is that in the heads again: neither config states the field itself."""
    names = next((field.names for field in _DERIVED if field.names[0] == key), ())
    return bool(names) and all(config.get(name) is None for name in names for config in (mine, other))


def differing_others(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Unknown fields that both configs state with different values."""
    both = mine.keys() & other.keys()
    if mine.get("use_sliding_window") is False and other.get("use_sliding_window") is False:
        both -= set(_WINDOWS)
    unknown = [key for key in both if key in _WINDOWS or (key not in KNOWN and not _HARMLESS.search(key))]
    return sorted(key for key in unknown if not same(mine[key], other[key]))


def same(one: Any, other: Any) -> bool:
    """Whether two values mean the same: numbers up to the rounding of float32, None as False."""
    if one is ANY or other is ANY:
        return True
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return (one or None) == (other or None)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return bool(abs(one - other) <= 1e-6 * max(abs(one), abs(other)))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
