"""Refuses quantised models: their tensors hold packed numbers, whose mean means nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engines.contract import BadInputError
from engines.tensor.layout import ModelLayout, TensorInfo

CONFIG_KEYS = ("quantization_config", "compression_config")
"""Where configs say that weights are quantised; older releases of compressed-tensors used the second."""
_METHOD_KEYS = ("quant_method", "quant_algo", "quantization", "method")
_COMPANIONS = {
    "absmax": "bitsandbytes",
    "quant_map": "bitsandbytes",
    "nested_absmax": "bitsandbytes",
    "SCB": "bitsandbytes",
    "weight_format": "bitsandbytes",
    "g_idx": "gptq",
    "qzeros": "gptq or awq",
    "qweight": "gptq or awq",
    "weight_packed": "compressed-tensors",
    "weight_zero_point": "compressed-tensors",
    "weight_scale": "compressed-tensors or fp8",
    "weight_scale_inv": "fp8",
    "weight_scale_2": "nvfp4",
    "weight_blocks": "mxfp4",
    "proj_blocks": "mxfp4",
}
"""Last parts of the names of tensors that only quantised models hold, and what keeps them."""
_ADVICE = "merge the model that it was made from, and quantise the result"


def check_config_is_plain(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise BadInputError where a config says that the weights are quantised, naming the quantisation.

    Call it before the headers are read, so that the error names the quantisation and not an unknown type.
    """
    for where, value in _stated(config):
        file = str(folder / "config.json")
        raise BadInputError(
            f"{file}: {where} says that the weights are quantised ({_method(value)}); {_ADVICE}",
            code="quantised",
            file=file,
            field=where,
        )


def check_tensors_are_plain(layout: ModelLayout) -> None:
    """Raise BadInputError where tensors are those of a quantised model, whatever its config says."""
    for name, info in layout.tensors.items():
        last = name.rpartition(".")[2]
        method = _COMPANIONS.get(last) or next(
            (method for part, method in _COMPANIONS.items() if last.endswith(f"_{part}")), None
        )
        if method is None and _is_packed(info, last):
            method = f"{info.dtype.name} weights"
        if method is not None:
            raise BadInputError(
                f"{info.file}: tensor {name} ({info.dtype.name}) is that of a quantised model ({method}); "
                f"{_ADVICE}",
                code="quantised",
                file=str(info.file),
                field=name,
            )


def _is_packed(info: TensorInfo, last: str) -> bool:
    """Whether whole numbers stand where a weight is expected: masks and positions have other names."""
    return not info.dtype.floating and (last == "weight" or last.endswith("_weight"))


def _stated(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every place where a config, or a part of it, states a quantisation."""
    for key, value in config.items():
        if key in CONFIG_KEYS and value:
            yield key, value
        elif key.endswith("_config") and isinstance(value, Mapping):
            for where, found in _stated(value):
                yield f"{key}.{where}", found


def _method(value: Any) -> str:
    """``gptq, 4 bits`` of a quantization_config."""
    if not isinstance(value, Mapping):
        return str(value)[:40]
    method = next((str(value[key]) for key in _METHOD_KEYS if value.get(key)), "")
    bits = value.get("bits") or value.get("w_bit")
    for key in ("load_in_4bit", "load_in_8bit"):
        if value.get(key):
            method, bits = method or "bitsandbytes", bits or int(key[8])
    known = [method or "its method is not named"]
    if isinstance(bits, int):
        known.append(f"{bits} bits")
    elif isinstance(value.get("format"), str):
        known.append(value["format"])
    return ", ".join(known)
