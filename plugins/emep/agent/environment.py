"""The environment of an engine: the order's variables, the agent's own, and few that are inherited."""

from __future__ import annotations

from collections.abc import Mapping

from emep.client.credentials import LEASE_PREFIX
from emep.wire.nodes import StartOrder

INHERITED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
        "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
        "no_proxy", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_HOME", "ROCM_PATH", "XDG_CACHE_HOME",
        "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_ENDPOINT",
        "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM",
    }
)  # fmt: skip
"""Variables that a program needs to find itself, its libraries and its caches. No secret is among them."""
_INHERITED_PREFIXES = ("LC_", "NCCL_")
_NEVER = frozenset({"EMEP_AGENT_TOKEN", "AIRFLOW__EMEP__AGENT_TOKEN"})


def engine_environment(
    order: StartOrder,
    own: Mapping[str, str],
    *,
    api_url: str,
    result_path: str,
    devices: Mapping[str, str],
    passed: tuple[str, ...] = (),
) -> dict[str, str]:
    """Variables of the engine's process.

    ``own`` is the agent's environment, ``devices`` the visible devices as telemetry names them, ``passed``
    more names to inherit (the administrator's choice). What the agent sets wins over the order, the order
    over what is inherited; the agent's own secret never goes along.
    """
    inherited = {
        name: value
        for name, value in own.items()
        if name in INHERITED or name in passed or name.startswith(_INHERITED_PREFIXES)
    }
    granted = {
        "EMEP_API_URL": api_url,
        "EMEP_ALLOCATION_ID": order.allocation_id,
        # The bare token: code that sends it adds the "Bearer" prefix.
        "EMEP_LEASE_TOKEN": order.lease_token.removeprefix(LEASE_PREFIX),
        "EMEP_LEASE_EPOCH": str(order.epoch),
        "EMEP_RESULT_PATH": result_path,
        "EMEP_GPU_INDICES": ",".join(str(gpu.index) for gpu in order.gpus),
    }
    # PYTHONUNBUFFERED: logs are shipped as they are written.
    both = {"PYTHONUNBUFFERED": "1", **inherited, **order.environment, **devices, **granted}
    return {name: value for name, value in both.items() if name not in _NEVER}


def run_marks(order: StartOrder, result_path: str) -> dict[str, str]:
    """The variables by which the agent recognises processes of this run."""
    return {
        "EMEP_ALLOCATION_ID": order.allocation_id,
        "EMEP_LEASE_EPOCH": str(order.epoch),
        "EMEP_RESULT_PATH": result_path,
    }
