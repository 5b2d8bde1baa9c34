"""TensorEngine: lazy, sharded safetensors in and out.

``layout`` and ``dtypes`` import no torch; the rest does.
"""
