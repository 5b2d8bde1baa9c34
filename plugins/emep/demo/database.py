"""How the demo's processes share one SQLite file: they wait for one another instead of failing after 5 s."""

from __future__ import annotations

from typing import Any

CONNECT_ARGUMENTS: dict[str, Any] = {"timeout": 60}
"""Seconds to wait for another process's write; ``[database] sql_alchemy_connect_args`` names this."""
