"""Rotary positions of a config, in one form for all the ways in which configs have stated them.

``rope_theta`` with ``rope_scaling`` (for one kind of layer), ``rope_local_base_freq`` (a second kind),
``rotary_emb_base`` and ``rotary_pct`` (GPT-NeoX), ``rope_parameters`` (new, flat or one for each kind).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_THETA = 10_000.0
"""Where neither the config nor its kind of model says otherwise."""
_KINDS = {
    1e6: (
        "mixtral",
        "minimax",
        "lfm2",
        "phimoe",
        "solar_open",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "gemma3_text",
    ),
    5e5: ("llama4_text", "cohere", "ernie4_5", "flex_olmo", "exaone", "bitnet", "olmo3", "mllama_text_model"),
    1.5e5: ("gpt_oss",),
    2e6: ("smollm3",),
    5e6: ("minimax_m2",),
    1e7: ("longcat_flash",),
    1.2e7: ("apertus",),
    1e5: ("helium",),
}
"""Defaults of model types that have one of their own, as transformers has them."""
_LENGTH_DEPENDENT = ("dynamic", "yarn", "longrope", "su")
"""Kinds of scaling that start from the longest text where they are not told what was trained on."""


def rotary_values(config: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """``rope_theta`` and ``rope_scaling`` (the rest), each with its name and a value to compare.

    A theta that differs by kind of layer is a mapping of the kinds.
    """
    given = config.get("rope_parameters")
    if isinstance(given, Mapping) and any(isinstance(value, Mapping) for value in given.values()):
        kinds = {str(kind): value for kind, value in given.items() if isinstance(value, Mapping)}
        read = {kind: _one(config, value, None) for kind, value in kinds.items()}
    elif config.get("rope_local_base_freq") is not None:
        read = {
            "full_attention": _one(config, _scaling(config), config.get("rope_theta")),
            "sliding_attention": _one(config, {}, config["rope_local_base_freq"]),
        }
    else:
        read = {"": _one(config, _scaling(config), config.get("rope_theta"))}
    thetas = {kind: theta for kind, (theta, _) in read.items()}
    rests = {kind: rest for kind, (_, rest) in read.items()}
    return {
        "rope_theta": ("rope_theta", thetas if len(thetas) > 1 else next(iter(thetas.values()))),
        "rope_scaling": ("rope_scaling", rests if len(rests) > 1 else next(iter(rests.values()))),
    }


def _scaling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if isinstance(value, Mapping):
            return value
    return {}


def _one(config: Mapping[str, Any], given: Mapping[str, Any], theta: Any) -> tuple[float, dict[str, Any]]:
    """Theta and the other parameters of one kind of layer, without what says nothing."""
    rest = {str(key): value for key, value in given.items() if value is not None}
    stated = rest.pop("rope_theta", theta)
    if stated is None:
        stated = config.get("rotary_emb_base")
    kind = rest.pop("rope_type", rest.pop("type", "default"))
    rest.pop("type", None)
    share = rest.pop("partial_rotary_factor", config.get("partial_rotary_factor"))
    share = config.get("rotary_pct", 1.0) if share is None else share
    rest.pop("max_position_embeddings", None)
    if kind == "linear" and rest.get("factor") == 1.0:
        kind, rest = "default", {}
    if kind == "default":
        rest = {key: value for key, value in rest.items() if key == "mrope_section"}
    if kind in _LENGTH_DEPENDENT and "original_max_position_embeddings" not in rest:
        rest["original_max_position_embeddings"] = config.get(
            "original_max_position_embeddings", config.get("max_position_embeddings")
        )
    for key in ("rotary_dim",):
        if config.get(key) is not None:
            rest[key] = config[key]
    return (
        float(stated) if isinstance(stated, int | float) else _default_theta(config),
        {"rope_type": kind, **rest, **({"partial_rotary_factor": share} if share != 1.0 else {})},
    )


def _default_theta(config: Mapping[str, Any]) -> float:
    kind = config.get("model_type")
    return next((theta for theta, kinds in _KINDS.items() if kind in kinds), _THETA)
