"""The ``[emep]`` section of Airflow's configuration, read once and typed.

Every option has its environment variable, as all of Airflow's have: ``AIRFLOW__EMEP__AGENT_TOKEN``.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SECTION = "emep"


@dataclass(frozen=True)
class Settings:
    """Options of EMEP's control plane."""

    secret_key: bytes
    """Key of the lease tokens; by default derived from ``[api_auth] jwt_secret``."""
    agent_token: str = ""
    """What agents enrol with; empty: no agent may call."""
    service_user: str = "emep"
    """The only account, besides administrators, that may submit in another user's name."""
    policy_file: Path | None = None
    """None: the default policy."""
    checkpoint_uri: str = ""
    """Folder of all checkpoints, one sub-folder a job; told to engines as ``EMEP_CHECKPOINT_URI``."""
    artifact_uri: str = ""
    tracker_uri: str = ""
    extra_engines: tuple[str, ...] = ()
    """Names of a site's own engines, which its agents have beside those that ship."""
    tick_seconds: float = 1.0
    """Seconds between two checks for time-outs."""
    max_log_bytes: int = 64 * 1024**2
    """Bytes kept of one allocation's log, the newest; a line in it says how many before them were cut."""

    def __post_init__(self) -> None:
        if len(self.secret_key) < 16:
            raise ValueError("[emep] secret_key: at least 16 bytes are needed, leave it out to derive one")
        if not 0.05 <= self.tick_seconds <= 60:
            raise ValueError(f"[emep] tick_seconds: between 0.05 and 60, not {self.tick_seconds:g}")


def derive_key(secret: str) -> bytes:
    """Derive a key of EMEP's own from another secret, so that the key does not reveal the secret."""
    return hmac.new(secret.encode(), b"emep lease tokens", hashlib.sha256).digest()


@cache
def get_settings() -> Settings:
    """The settings of this process. Raises ValueError in one sentence that names the option."""
    from airflow.configuration import AIRFLOW_HOME, conf

    def text(option: str, default: str = "") -> str:
        return str(conf.get(SECTION, option, fallback=default) or default).strip()

    def number(option: str, default: float) -> float:
        value = text(option, str(default))
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"[emep] {option}: a number is needed, not {value!r}") from None

    secret = text("secret_key")
    key = secret.encode() if secret else derive_key(str(conf.get_mandatory_value("api_auth", "jwt_secret")))
    home = Path(AIRFLOW_HOME).absolute()
    return Settings(
        secret_key=key,
        agent_token=text("agent_token"),
        service_user=text("service_user", "emep"),
        policy_file=policy_file(),
        checkpoint_uri=text("checkpoint_uri", (home / "emep" / "checkpoints").as_uri()),
        artifact_uri=text("artifact_uri", (home / "emep" / "artifacts").as_uri()),
        tracker_uri=text("tracker_uri", (home / "emep" / "tracking").as_uri()),
        extra_engines=tuple(name.strip() for name in text("extra_engines").split(",") if name.strip()),
        tick_seconds=number("tick_seconds", 1.0),
        max_log_bytes=int(number("max_log_bytes", 64 * 1024**2)),
    )


def policy_file() -> Path | None:
    """The policy file: ``[emep] policy_file``, else the project's own; None: there is none."""
    from airflow.configuration import conf

    named = str(conf.get(SECTION, "policy_file", fallback="") or "").strip()
    return Path(named).expanduser() if named else _shipped_policy()


def _shipped_policy() -> Path | None:
    """``include/policy.yaml`` beside the plugins folder, where the project has one."""
    candidate = Path(__file__).resolve().parents[2] / "include" / "policy.yaml"
    return candidate if candidate.is_file() else None
