"""MergeEngine: recipes (``recipe``), plans (``plan``), methods (``methods``), engine (``engine``), in memory."""
