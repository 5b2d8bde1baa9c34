"""The demo's policy: the project's own, and the demo's models open to every job."""

from __future__ import annotations

from pathlib import Path

import yaml

from emep.demo.home import DemoHome
from emep.demo.processes import DemoError


def write_policy(home: DemoHome, project: Path) -> None:
    """Write the home's policy file. Raises DemoError where the project's policy is no YAML."""
    source = project / "include" / "policy.yaml"
    try:
        policy = yaml.safe_load(source.read_text(encoding="utf-8")) if source.is_file() else {}
        policy = policy if isinstance(policy, dict) else {}
        roots = dict(policy.get("roots") or {})
        roots["read"] = [*(roots.get("read") or []), str(home.models)]
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise DemoError(f"{source}: this is not YAML: {str(error).splitlines()[0]}") from None
    text = yaml.safe_dump({**policy, "roots": roots}, sort_keys=False)
    home.policy.write_text(f"# Made from {source} at each start of the demo.\n{text}", encoding="utf-8")
