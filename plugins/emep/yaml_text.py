"""The engines' reader of YAML, for recipes that a form or the command line brings.

A run's first task, a command and an engine must read a recipe alike: a key given twice is refused, ``5e-1``
is a number. This is the only module of the control plane that imports from the engines, and its import needs
only PyYAML.
"""

from __future__ import annotations

from engines.merge.numbers import as_finite
from engines.merge.yaml_text import TooDeep, YamlFault, is_yaml_text, read_yaml

__all__ = ["TooDeep", "YamlFault", "as_finite", "is_yaml_text", "read_yaml"]
