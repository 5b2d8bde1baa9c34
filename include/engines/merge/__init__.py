"""MergeEngine: recipes (``recipe``), plans (``plan``), ``methods``, ``engine`` and ``in_memory``."""
