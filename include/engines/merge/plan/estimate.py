"""What a merge plan will read, write, need and take, for people and for the check before a job."""

from __future__ import annotations

from engines.merge.plan.planned import MergePlan

_BASE_BYTES = 550e6
"""Python and torch (with its CUDA libraries)."""
_START_SECONDS = 2.0
"""Their import."""
_ELEMENT_SECONDS = 0.6e-9
"""A weighted sum, per element and input."""


def describe(plan: MergePlan, device: str, *, chunked: bool) -> str:
    """The plan for people: what is read and written, memory and time."""
    method, lines = plan.recipe.method, []
    lines.append(f"method      {method.name} ({method.paper})")
    for reference, layout in plan.models.items():
        lines.append(
            f"model       {reference}: {layout.parameters:,} parameters, {layout.nbytes / 1e6:,.1f} MB"
        )
    lines.append(
        f"donor       {plan.donor.folder} (config, tensor set), tokenizer of {plan.tokenizer.folder}"
    )
    kinds = sorted({tensor.dtype.name for tensor in plan.tensors})
    lines.append(
        f"output      {len(plan.tensors)} tensors, {plan.parameters:,} parameters, "
        f"{plan.output_bytes / 1e6:,.1f} MB, {', '.join(kinds)}"
    )
    memory, seconds = estimate(plan, device, chunked=chunked)
    lines.append(f"reads       {plan.read_bytes / 1e6:,.1f} MB in {method.passes} pass(es)")
    lines.append(f"memory      about {memory / 1e6:,.0f} MB, whatever the models' size")
    lines.append(
        f"time        about {seconds:,.1f} s on two CPU cores with the files in memory; disks may take longer"
    )
    return "\n".join(lines) + "\n"


def estimate(plan: MergePlan, device: str, *, chunked: bool) -> tuple[float, float]:
    """Peak memory in bytes and seconds, from measured rates of one machine: an order of magnitude, not a
    promise.
    """
    elements = (1 << 16) if chunked else (1 << 24) if device.startswith("cuda") else (1 << 18)
    inputs = max((len(tensor.sources) for tensor in plan.tensors), default=1)
    memory = _BASE_BYTES + elements * 4 * (3 * inputs + 6)
    work = sum(tensor.numel * len(tensor.sources) for tensor in plan.tensors) * plan.recipe.method.cost
    seconds = _START_SECONDS + plan.read_bytes / 3e9 + plan.output_bytes / 1.0e9 + work * _ELEMENT_SECONDS
    return memory, seconds
