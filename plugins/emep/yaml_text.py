"""The engines' reader of YAML, for recipes that a form or the command line brings.

What a run's first task, a command and an engine read must be one thing: a key given twice is refused,
``5e-1`` is a number. This module is the only one of the control plane that imports something of the engines,
and what it imports needs PyYAML alone.
"""

from __future__ import annotations

from engines.merge.numbers import as_finite
from engines.merge.yaml_text import TooDeep, YamlFault, is_yaml_text, read_yaml

__all__ = ["TooDeep", "YamlFault", "as_finite", "is_yaml_text", "read_yaml"]
