"""Whether models of equal shapes mean the same by their weights: what their configs say beyond the shapes.

Tensors of equal names and shapes can still be another model's: other heads, another rotation of positions,
another norm. An average of such weights is rubbish that loads without a word. The fields below are compared;
a recipe may allow a difference by its name (``allow_mismatch``), and the donor's value is kept then. A field
that one config leaves out is not compared: its default depends on the architecture.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from engines.contract import BadInputError
from engines.merge.architecture import LAYER_KEYS, layer_count, text_config
from engines.tensor.layout import ModelLayout

LAYERS = "num_hidden_layers"
HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")
ROPE = ("rope_theta", "rope_scaling")
_ALIASES: Mapping[str, tuple[str, ...]] = {
    LAYERS: LAYER_KEYS,
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "rms_norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation_type"),
}
"""One name for what architectures call differently; messages use the config's own."""
PLAIN = (
    "rms_norm_eps", "hidden_act", "model_type", "partial_rotary_factor", "rotary_pct", "rotary_dim", "alibi",
    "position_embedding_type", "sliding_window", "use_sliding_window", "layer_types", "max_window_layers",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
    "logits_scaling", "attention_multiplier", "residual_multiplier", "embedding_multiplier",
    "scale_attn_weights", "scale_embedding", "num_experts_per_tok", "norm_topk_prob", "parallel_attn",
    "use_parallel_residual", "qk_layernorm", "use_qk_norm",
)  # fmt: skip
FIELDS = (LAYERS, *HEADS, *ROPE, *PLAIN)
"""What ``allow_mismatch`` may name."""
_BY_DEPTH = frozenset({LAYERS, "layer_types", "max_window_layers"})
"""What follows the number of layers: slices take layers where they will."""
_PACKED = (
    ".qweight",
    ".qzeros",
    ".weight_packed",
    ".weight_scale",
    ".absmax",
    ".SCB",
    ".g_idx",
    ".quant_map",
)
"""Names of tensors that hold packed weights or what unpacks them."""


def check_not_quantised(layout: ModelLayout) -> None:
    """Refuse a model whose tensors hold packed weights: arithmetic on them is no arithmetic on weights.

    Raises BadInputError naming ``quantization_config`` and its method, or the tensor where no config says it.
    """
    for config in (layout.config, text_config(layout.config)):
        found = config.get("quantization_config") or config.get("compression_config")
        if found:
            method = found.get("quant_method") if isinstance(found, Mapping) else None
            said = f" ({method})" if method else ""
            raise BadInputError(
                f"{layout.folder}/config.json: quantization_config says that the weights are packed{said}; "
                "merge the model that it was made from, or dequantise it first",
                code="quantised",
                file=str(layout.folder / "config.json"),
                field="quantization_config",
            )
    packed = next((name for name in layout.tensors if name.endswith(_PACKED)), None)
    if packed is not None:
        raise BadInputError(
            f"{layout.tensors[packed].file}: tensor {packed} belongs to packed (quantised) weights, though "
            "config.json has no quantization_config; merge the model that it was made from",
            code="quantised",
            file=str(layout.tensors[packed].file),
            field=packed,
        )


def check_alike(
    donor: ModelLayout, other: ModelLayout, allowed: Collection[str], *, same_depth: bool
) -> list[str]:
    """Compare two models' configs; warnings of the differences that the recipe allows.

    ``same_depth``: whether all layers take part, one to one. Raises BadInputError naming the first field that
    differs and is not allowed.
    """
    mine, theirs = _meaning(donor.config), _meaning(other.config)
    warnings = []
    for name in FIELDS:
        if name not in mine or name not in theirs or mine[name] == theirs[name]:
            continue
        if name in _BY_DEPTH and not same_depth:
            continue
        difference = f"{name} is {mine[name]} in {donor.folder} and {theirs[name]} in {other.folder}"
        if name not in allowed:
            raise BadInputError(
                f"{difference}: their weights do not mean the same. Merge models of one kind, or allow it by "
                f"--allow-mismatch {name} (in the recipe: allow_mismatch: [{name}])",
                code="config_mismatch",
                file=str(other.folder / "config.json"),
                field=name,
            )
        warnings.append(f"{difference}: allowed, the output's config says {mine[name]}")
    return warnings


def _meaning(config: dict[str, Any]) -> dict[str, Any]:
    """The compared fields that a config states, in one form."""
    part = text_config(config)
    found: dict[str, Any] = {}
    for name in (*HEADS, *PLAIN):
        for alias in _ALIASES.get(name, (name,)):
            value = part.get(alias, config.get(alias))
            if value is not None:
                found[name] = float(value) if _is_number(value) else value
                break
    if (layers := layer_count(config)) is not None:
        found[LAYERS] = layers
    heads, hidden = found.get("num_attention_heads"), part.get("hidden_size")
    if heads:
        found.setdefault("num_key_value_heads", heads)
        if isinstance(hidden, int):
            found.setdefault("head_dim", hidden / heads)
    return found | _rope(part)


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Base and scaling of the rotary position embedding, from either of the forms that configs have."""
    nested = config.get("rope_parameters")
    parameters = dict(nested) if isinstance(nested, Mapping) else {}
    scaling = config.get("rope_scaling")
    if isinstance(scaling, Mapping):
        parameters |= scaling
    theta = parameters.pop("rope_theta", config.get("rope_theta", config.get("rotary_emb_base")))
    kind = parameters.pop("rope_type", parameters.pop("type", "default"))
    found: dict[str, Any] = {}
    if _is_number(theta):
        found["rope_theta"] = float(theta)
        scaled = {key: float(value) if _is_number(value) else value for key, value in parameters.items()}
        found["rope_scaling"] = "none" if kind == "default" else {"rope_type": kind, **scaled}
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
